"""What a verdict says of a shard's error budget: which of three causes an error has, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pytest_ane.gates.fidelity._records import Fidelity
from pytest_ane.gates.verdict import Figure, Finding, Limits, Where, bounds, counted, limited, some
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
_RED, _MOST = 1.6, 0.5
"""Times what right packages reach, beyond which an error is no compression's, unless that explains
the second, as a share of what the shard adds."""
_ITSELF = 5
"""How many times less than that nothing is lost but what is compared with itself."""
_NAMED = 5


def split_figures(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Figure]:
    if (budget := fidelity.budget) is None:
        return
    limits = split_limits(policy)
    for name, error in (
        ("algebra", budget.algebra),
        ("program", budget.program),
        ("rounding", budget.rounding),
        ("compression error", budget.compression),
        ("loss", budget.loss),
        ("total error", fidelity.total if budget.loss is None else None),
    ):
        if error is not None:
            key = name.replace(" ", "_")
            greatest = Figure(f"{key}.max", error.greatest, label=name)
            rms = Figure(f"{key}.rms", error.rms, label=f"{name}, rms")
            if name == "total error":
                rms = replace(rms, limit=_allowed(fidelity, policy), good="below")
            yield from limited((greatest, rms), limits)


def split_limits(policy: FidelityPolicy) -> Limits:
    """What a policy asks of figures; what the total error may be depends on its parts."""
    return bounds(
        "below",
        algebra__max=policy.max_algebra,
        algebra__rms=policy.max_algebra / _RMS,
        program__max=policy.max_algebra,
        program__rms=policy.max_algebra / _RMS,
        rounding__max=policy.max_rounding,
        rounding__rms=policy.max_rounding / _RMS,
    )


def split_findings(fidelity: Fidelity, policy: FidelityPolicy, subject: str) -> Iterator[Finding]:
    if (budget := fidelity.budget) is None:
        return
    shard, total = subject.rpartition(":")[2], fidelity.total
    if budget.loss is not None:
        yield from _unexplained(budget, budget.loss, policy, shard)
        total = None
    for each in budget.foreign:
        reason = each.format(plain=budget.plain)
        yield Finding("failed", reason, kind=f"hold other weights than {budget.plain}")
    put, wrong = f"with the weights of {budget.plain} put in, in float32, ", False
    for name, error, before, after in (
        ("algebra", budget.algebra, "", ", and compression has no part in it"),
        ("program", budget.program, put, ""),
    ):
        if error is not None and _is_broken(error, policy.max_algebra):
            wrong, reason = True, f"wrong function: {before}{_off(error, shard)}{after}"
            yield _finding(error, reason, name, policy.max_algebra)
    if budget.unpaired:
        count, named = counted(len(budget.unpaired), "compressed weight"), some(budget.unpaired, 3)
        what = f"Whether its function is that of {budget.plain} is not known"
        remedy = 'name the program that was compressed: uncompressed = "x-fp16.mlpackage", '
        remedy += "converted from the same module with the same operations"
        reason = f"{what}: {count} ({named}) have no counterpart there"
        yield Finding("unproven", reason, remedy=remedy)
    if _is_broken(budget.rounding, policy.max_rounding):
        cause = "overflows" if budget.overflow else "rounds too much"
        right = "" if wrong else ", and the same program is right in float32"
        reason = f"fp16 {cause}: {_off(budget.rounding, shard)}{right}"
        yield _finding(budget.rounding, reason, "rounding", policy.max_rounding)
    if total is not None and not total.rms <= (allowed := _allowed(fidelity, policy)):
        parts = ", ".join(f"{name} {in_words(value, 2)}" for name, value in _parts(fidelity))
        off = f"the output is off by {amount(total.rms, _what(total, shard))} (rms)"
        reason = f"the run: {off}, and {parts} explain {allowed:.2g}"
        yield _finding(total, reason, "total_error", math.inf)


def _unexplained(
    budget: ErrorBudget, loss: Error, policy: FidelityPolicy, shard: str
) -> Iterator[Finding]:
    """What is off in float32, against what compression of this file can lose.

    What algebra allows is nothing; of a compression that loses half of everything, and more,
    nothing can be told. One that loses far less than it must was compared with itself.
    """
    itself = _ITSELF * max(loss.rms, policy.max_algebra / _RMS) < budget.explained
    beyond = budget.beyond > 1 and _is_broken(loss, policy.max_algebra)
    explained = f"its tables and scales explain {budget.explained:.2g} (rms)"
    reason = f"{_off(loss, shard)}, and {explained}"
    if beyond and math.isfinite(budget.beyond):
        reason += f"; {budget.beyond:.2g} times what they may {budget.way}"
    if beyond and budget.beyond > _RED and budget.explained < _MOST:
        reason = f"wrong function: no compression of this file loses that much: {reason}"
        yield _finding(loss, reason, "loss", math.inf)
    elif beyond or itself:
        what = "the golden tensors are as the package itself gives them" if itself else ""
        reason = f"{what or 'compression may not be all of it'}: {reason}"
        remedy = 'name the program before compression: uncompressed = "x-fp16.mlpackage"'
        finding = _finding(loss, reason, "loss", math.inf)
        yield replace(finding, severity="unproven", remedy=remedy)


def _is_broken(error: Error, most: float) -> bool:
    return not (error.greatest <= most and error.rms <= most / _RMS)


def cost_figures(fidelity: Fidelity) -> Iterator[Figure]:
    if (e := fidelity.cost) is not None:
        yield Figure("cost.rms", e.rms, label="costs", note="rms", shown=True)
        yield Figure("cost.max", e.greatest, label="costs at most")


def compression_finding(fidelity: Fidelity, subject: str) -> Iterator[Finding]:
    """The cause of what the thresholds find, where it is known: what costs most."""
    budget, cost, shard = fidelity.budget, fidelity.cost, subject.rpartition(":")[2]
    e = budget and budget.compression
    if cost and not cost.rms <= (e.rms if e else 0.0):
        reason = f"the ANE's arithmetic: it costs {amount(cost.rms, _what(cost, shard))} (rms)"
        remedy = "see which operations lose it, with the hazards gate or pytest-ane blame"
        against = "against the same program as typed"
        yield Finding("failed", f"{reason}, {against}", _where(cost), remedy)
    elif e:
        others = ", ".join(f"{n} {in_words(value, 2)}" for n, value in _parts(fidelity)[:-1])
        reason = f"it costs {amount(e.rms, _what(e, shard))} (rms), {others}"
        remedy = "compress less, weight by weight as pytest-ane blame ranks them"
        if not math.isfinite(e.rms):
            reason = "the compressed program gives NaN or infinity, and the uncompressed one not"
            remedy = "compress it again; a table holds NaN, infinity, or what overflows"
        yield Finding("failed", f"compression: {reason}", _where(e), remedy)


def _where(error: Error) -> Where:
    return Where(probe=error.probe, output=error.output, position=error.position)


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


def _finding(error: Error, reason: str, name: str, most: float) -> Finding:
    details = "".join(f"; {detail}" for detail in _details(error, most))
    worst = f"(worst in {error.probe}, position {error.position})"
    figure = "rms" if error.greatest <= most else "max"
    return Finding("failed", f"{reason}{details} {worst}", _where(error), figure=f"{name}.{figure}")


def _off(error: Error, shard: str) -> str:
    if math.isinf(error.greatest):
        return "the output is NaN or infinite"
    return f"{amount(error.greatest, _what(error, shard))} is wrong"


def amount(error: float, what: str) -> str:
    """`0.31 of what L26 adds`, `1,000 times what L26 adds`."""
    return f"{float(f'{error:.2g}'):,.0f} times {what}" if error >= 10 else f"{error:.2g} of {what}"


def _what(error: Error, shard: str) -> str:
    return f"what {shard} {'adds' if error.adds else 'gives'}"


def _details(error: Error, bound: float) -> Iterator[str]:
    if abs(error.gain - 1) > _GAIN:
        yield f"gain {error.gain:.3g}"
    bound = min(bound, error.greatest / 4)
    lengths = error.lengths
    # A length is named where every call of it is wrong, and none of another one.
    if any(
        (least > bound) != (most > bound)
        for least, (_, most) in zip(error.least, lengths, strict=False)
    ):
        lengths = ()
    # Shorter ones are right for lack of the positions that are named.
    first = next((at for at, value in error.positions if value > bound), 0)
    if first and all((n > first) == (value > bound) for n, value in lengths):
        lengths = ()
    named = {"only for T =": lengths, "at position": error.positions, "experts": error.experts}
    for what, values in named.items():
        wrong = [at for at, value in values if value > bound]
        if wrong and len(wrong) < len(values):
            # Such as all that come later.
            onward = len(wrong) > 1 and wrong == [at for at, _ in values][-len(wrong) :]
            later = onward and what != "experts"
            yield f"{what} {f'{wrong[0]} and more' if later else some(wrong, _NAMED)}"
    if error.channels:
        first, last = error.channels
        yield f"channel {first}" if first == last else f"channels {first} to {last}"
