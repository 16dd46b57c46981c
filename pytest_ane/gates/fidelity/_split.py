"""What a verdict says of a shard's error budget: which of three causes an error has, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_ane.gates.fidelity._records import Fidelity
from pytest_ane.gates.verdict import Figure, Finding, Limits, Where, bounds, limited, some
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.metrics.tensors import in_words
from pytest_ane.probes.error_budget import Error, ErrorBudget

DEVICE_ROUNDING = 0.03
"""Root mean square that rounding may take where another machine adds up: fp16 noise of 1 to 4 ulp
on every conv and matmul gave 0.0025 to 0.014 on 34 blocks of SmolLM2, on every operation 0.03."""
_RMS = 10
"""How many times smaller than any position's error that of all must be, as a root mean square."""
_GAIN = 0.02
"""From this difference from 1 a gain is named."""
_NAMED = 5


@dataclass(frozen=True)
class _Bounds:
    name: str
    error: Error | None
    greatest: float
    rms: float

    @property
    def broken(self) -> bool:
        e = self.error
        return e is not None and not (e.greatest <= self.greatest and e.rms <= self.rms)


def split_figures(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Figure]:
    """Each error's greatest value and root mean square; what they may come to together."""
    if (budget := fidelity.budget) is None:
        return
    for part in _bounds(budget, policy):
        if (e := part.error) is not None:
            greatest = Figure(f"{part.name}.max", e.greatest, label=part.name)
            rms = Figure(f"{part.name}.rms", e.rms, label=f"{part.name}, rms")
            yield from limited((greatest, rms), split_limits(policy))
    if (e := budget.compression) is not None:
        yield Figure("compression_error.max", e.greatest, label="compression error")
        yield Figure("compression_error.rms", e.rms, label="compression error, rms")
    if (e := fidelity.total) is not None:
        yield Figure("total_error.max", e.greatest, label="total error")
        yield Figure("total_error.rms", e.rms, label="total error, rms",
                     limit=_allowed(fidelity, policy), good="below")  # fmt: skip


def split_limits(policy: FidelityPolicy) -> Limits:
    """What a policy asks of figures; what the total error may be depends on its parts."""
    return bounds(
        "below",
        algebra__max=policy.max_algebra,
        algebra__rms=policy.max_algebra / _RMS,
        rounding__max=policy.max_rounding,
        rounding__rms=policy.max_rounding / _RMS,
    )


def split_findings(fidelity: Fidelity, policy: FidelityPolicy, subject: str) -> Iterator[Finding]:
    """Which of the errors is beyond its bound."""
    if (budget := fidelity.budget) is None:
        return
    shard = subject.rpartition(":")[2]
    algebra, rounding = _bounds(budget, policy)
    if algebra.broken and budget.algebra is not None:
        yield _finding(
            budget.algebra,
            f"wrong function: {_off(budget.algebra, shard)}, and compression has no part in it",
            algebra,
        )
    if rounding.broken:
        cause = f"overflows from {budget.overflow} on" if budget.overflow else "rounds too much"
        yield _finding(
            budget.rounding,
            f"fp16 {cause}: {_off(budget.rounding, shard)}, and the same program is right in "
            "float32" if not algebra.broken else f"fp16 {cause}: {_off(budget.rounding, shard)}",
            rounding,
        )  # fmt: skip
    total = fidelity.total
    if total is not None and not total.rms <= (allowed := _allowed(fidelity, policy)):
        parts = ", ".join(f"{name} {in_words(value, 2)}" for name, value in _parts(fidelity))
        yield _finding(
            total,
            f"the run: the output is off by {total.rms:.2g} of {_what(total, shard)} (rms), and "
            f"{parts} explain {allowed:.2g}",
            _Bounds("total_error", total, math.inf, allowed),
        )


def cost_figures(fidelity: Fidelity) -> Iterator[Figure]:
    """What the ANE's arithmetic itself costs: how far its run is from the run as typed."""
    if (e := fidelity.cost) is not None:
        yield Figure("cost.rms", e.rms, label="costs", note="rms", shown=True)
        yield Figure("cost.max", e.greatest, label="costs at most")


def compression_finding(fidelity: Fidelity, subject: str) -> Finding | None:
    """That compression is the cause of what the thresholds find; None where it is not known.

    Where the ANE's arithmetic costs more, that is the cause.
    """
    budget, cost, shard = fidelity.budget, fidelity.cost, subject.rpartition(":")[2]
    compression = budget and budget.compression
    if cost and not cost.rms <= (compression.rms if compression else 0.0):
        return Finding(
            "failed",
            f"the ANE's arithmetic: it costs {cost.rms:.2g} of {_what(cost, shard)} (rms), "
            "against the same program as typed",
            Where(probe=cost.probe, output=cost.output, position=cost.position),
            "see which operations lose it, with the hazards gate or pytest-ane blame",
        )
    if budget is None or (e := budget.compression) is None:
        return None
    where = Where(probe=e.probe, output=e.output, position=e.position)
    if not math.isfinite(e.rms):
        return Finding(
            "failed",
            "compression: the compressed program gives NaN or infinity, and the uncompressed one "
            "does not",
            where,
            "compress it again; a table of its weights holds NaN, infinity, or what overflows",
        )
    others = ", ".join(f"{n} {in_words(value, 2)}" for n, value in _parts(fidelity)[:-1])
    return Finding(
        "failed",
        f"compression: it costs {e.rms:.2g} of {_what(e, shard)} (rms), {others}",
        where,
        "compress less, weight by weight as pytest-ane blame ranks them",
    )


def _bounds(budget: ErrorBudget, policy: FidelityPolicy) -> tuple[_Bounds, _Bounds]:
    most = split_limits(policy)
    algebra, rounding = (
        _Bounds(name, error, most[f"{name}.max"].limit, most[f"{name}.rms"].limit)
        for name, error in (("algebra", budget.algebra), ("rounding", budget.rounding))
    )
    return algebra, rounding


def _parts(fidelity: Fidelity) -> list[tuple[str, float]]:
    budget = fidelity.budget
    assert budget is not None
    rounding = budget.rounding.rms
    if fidelity.provenance.get("backend", "cpu") != "cpu":
        rounding = max(rounding, DEVICE_ROUNDING)
    # Without algebra the reference is rounded as well.
    algebra = rounding if budget.algebra is None else budget.algebra.rms
    compression = 0.0 if budget.compression is None else budget.compression.rms
    return [("function", algebra), ("fp16", rounding), ("compression", compression)]


def _allowed(fidelity: Fidelity, policy: FidelityPolicy) -> float:
    """What the total error may be: the parts', independent of one another, and some more.

    As small as what rounding alone may be is nothing, whatever the parts.
    """
    squares = sum(value**2 for _, value in _parts(fidelity))
    return max(policy.max_total_ratio * math.sqrt(squares), policy.max_rounding / _RMS)


def _finding(error: Error, reason: str, bounds: _Bounds) -> Finding:
    where = "; ".join(_details(error, bounds.greatest))
    figure = "rms" if error.greatest <= bounds.greatest else "max"
    return Finding(
        "failed",
        f"{reason}{'; ' if where else ''}{where} (worst in {error.probe}, position "
        f"{error.position})",
        Where(probe=error.probe, output=error.output, position=error.position),
        figure=f"{bounds.name}.{figure}",
    )


def _off(error: Error, shard: str) -> str:
    if math.isinf(error.greatest):
        return "the output is NaN or infinite"
    return f"{error.greatest:.2g} of {_what(error, shard)} is wrong"


def _what(error: Error, shard: str) -> str:
    return f"what {shard} {'adds' if error.adds else 'gives'}"


def _details(error: Error, bound: float) -> Iterator[str]:
    """Gain, lengths, positions, channels and experts that are hit, where they tell something."""
    if abs(error.gain - 1) > _GAIN:
        yield f"gain {error.gain:.3g}"
    bound = min(bound, error.greatest / 4)
    wrong = [size for size, value in error.lengths if value > bound]
    right = [size for size, value in error.lengths if value <= bound]
    if wrong and right:
        yield f"only for T {_lengths(wrong, right)}"
    if text := _positions(error, bound):
        yield text
    if error.channels:
        first, last = error.channels
        yield f"channel {first}" if first == last else f"channels {first} to {last}"
    experts = [expert for expert, value in error.experts if value > bound]
    if experts and len(experts) < len(error.experts):
        word = "expert" if len(experts) == 1 else "experts"
        yield f"{word} {some(experts, _NAMED)}"


def _lengths(wrong: Sequence[int], right: Sequence[int]) -> str:
    """`= 1`, `> 1`, `<= 4`, `= 2 to 4`, `= 33, 64`."""
    if min(wrong) > max(right):
        return f"> {max(right)}"
    if max(wrong) < min(right):
        return f"= {wrong[0]}" if len(wrong) == 1 else f"<= {max(wrong)}"
    within = [size for size in right if min(wrong) < size < max(wrong)]
    if not within and len(wrong) > 1:
        return f"= {min(wrong)} to {max(wrong)}"
    return f"= {some(wrong, _NAMED)}"


def _positions(error: Error, bound: float) -> str:
    """Where the errors of the worst probe are, unless they are everywhere."""
    wrong = [position for position, value in error.positions if value > bound]
    if not wrong or len(wrong) == len(error.positions):
        return ""
    later = [position for position, _ in error.positions if position >= wrong[0]]
    if wrong[0] > error.positions[0][0] and 2 * len(wrong) > len(later):
        return f"from position {wrong[0]} on"
    if len(wrong) * 4 <= len(error.positions):
        return f"at position {some(wrong, _NAMED)}"
    return ""
