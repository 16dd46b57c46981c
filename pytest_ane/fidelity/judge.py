"""The fidelity gate's opinion: policy applied to a measurement. Pure, and quick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from pytest_ane.fidelity.comparison import Comparison, Fidelity
from pytest_ane.manifest import FidelityPolicy
from pytest_ane.verdict import Verdict


def judge(fidelity: Fidelity, policy: FidelityPolicy, subject: str) -> Verdict:
    """Passed only if something was compared and everything compared is close and finite."""
    if not fidelity.comparisons:
        reason = "No probe was run, so nothing was compared; name probe kinds in shards.toml."
        return Verdict(
            "fidelity", subject, "unproven", "nothing was compared", (reason,),
            provenance=fidelity.provenance,
        )  # fmt: skip
    reasons = tuple(_reasons(fidelity, policy))
    return Verdict(
        gate="fidelity",
        subject=subject,
        status="failed" if reasons else "passed",
        summary=_summary(fidelity),
        reasons=reasons,
        facts=_facts(fidelity),
        details=tuple(_line(c) for c in _worst_first(fidelity.comparisons)),
        provenance=fidelity.provenance,
    )


def _reasons(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[str]:
    for c in fidelity.comparisons:
        if c.finite < 1:
            yield (
                f"{c.probe}: {_share(1 - c.finite)} of output {c.output} is NaN or infinite "
                f"(largest input {c.input_max:,.1f}; fp16 squares overflow above 255.9)."
            )
        if c.one_zero and fidelity.compared:
            yield f"{c.probe}: output {c.output} is zero on one side only at {_at(c.one_zero)}."
    if not fidelity.compared:
        return
    count = _probes(c for c in fidelity.rest if c.live)
    if count < policy.min_live_probes:
        yield (
            f"{count} of {_probes(fidelity.comparisons)} probes were live (the rest gave zeros, or "
            f"are position 0 alone), policy asks for {policy.min_live_probes}: too little was "
            "compared."
        )
    finite = [c for c in fidelity.comparisons if c.finite == 1]
    yield from _too_low([c.rest for c in finite], "min-cosine", policy.min_cosine)
    yield from _too_low([c.first for c in finite], "min-cosine-first", policy.min_cosine_first)


def _too_low(parts: list[Comparison], key: str, least: float) -> Iterator[str]:
    live = [c for c in parts if c.live]
    if bad := [c for c in live if not c.worst >= least]:
        c = _worst_first(bad)[0]
        yield (
            f"{_probes(bad)} of {_probes(live)} live probes are below cosine {least:g}; worst "
            f"{c.worst:.6f} in {c.probe}, position {c.worst_position} (largest input "
            f"{c.input_max:,.1f}, greatest absolute difference {c.error_max:.4g}); "
            f"{_passing(key, c.worst)} would have passed."
        )


def _summary(fidelity: Fidelity) -> str:
    if not fidelity.compared:
        bad = 1 - min(c.finite for c in fidelity.comparisons)
        finite = f"{_share(bad)} NaN or infinite" if bad else "all finite"
        return f"runs, {finite} (no reference: cosine not asked)"
    values, first = _cosines(fidelity.rest), _cosines(fidelity.first)
    low, mean = (float(np.min(values)), float(np.mean(values))) if values else (math.nan, math.nan)
    count, live = _probes(fidelity.comparisons), _probes(c for c in fidelity.comparisons if c.live)
    text = f"cosine min {low:.6f} mean {mean:.6f}"
    text += f" (position 0: {np.min(first):.4f})" if first and not np.min(first) >= low else ""
    text += f" · {count} probes"
    zero = f" · {count - live} all zero" if count > live else ""
    return f"{text} · max |x| {_largest_input(fidelity):,.0f}{zero}"


def _facts(fidelity: Fidelity) -> dict[str, float | int | str]:
    facts: dict[str, float | int | str] = {
        "probes": _probes(fidelity.comparisons),
        "probes.live": _probes(c for c in fidelity.comparisons if c.live),
        "input.max": _largest_input(fidelity),
        "finite": min(c.finite for c in fidelity.comparisons),
    }
    if fidelity.compared and (values := _cosines(fidelity.rest)):
        facts["cosine.min"] = float(np.min(values))
        facts["cosine.mean"] = float(np.mean(values))
        for kind in dict.fromkeys(c.kind for c in fidelity.comparisons):
            if of_kind := _cosines(c for c in fidelity.rest if c.kind == kind):
                facts[f"cosine.{kind}.min"] = float(np.min(of_kind))
    if fidelity.compared and (first := _cosines(fidelity.first)):
        facts["cosine.first.min"] = float(np.min(first))
    return facts


def _cosines(comparisons: Iterable[Comparison]) -> list[float]:
    return [x for c in comparisons for x in c.cosines]


def _probes(comparisons: Iterable[Comparison]) -> int:
    """Probes, each of which may have several outputs."""
    return len({c.probe for c in comparisons})


def _largest_input(fidelity: Fidelity) -> float:
    return float(np.max([c.input_max for c in fidelity.comparisons]))


def _worst_first(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Lowest cosine first, an undefined one before any number; what is zero comes last."""

    def rank(c: Comparison) -> float:
        if not c.live:
            return 2.0
        return -2.0 if math.isnan(c.worst) else c.worst

    return sorted(comparisons, key=rank)


def _line(c: Comparison) -> str:
    zero = f", {len(c.both_zero)} positions zero on both sides" if c.both_zero else ""
    shown = f"cosine {c.worst:.6f} at position {c.worst_position}" if c.live else "nothing live"
    return f"{c.probe} -> {c.output}: {shown}{zero}, max |x| {c.input_max:,.1f}"


def _at(positions: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, positions[:5]))
    return f"position {shown}" + (f" and {len(positions) - 5} more" if len(positions) > 5 else "")


def _share(value: float) -> str:
    """A share as per cent, never rounded down to nothing."""
    return f"{value:.2%}" if value >= 1e-4 else "less than 0.01%"


def _passing(key: str, cosine: float) -> str:
    """The highest threshold of four digits that a cosine reaches."""
    if math.isnan(cosine):
        return f"no {key}"
    return f"{key} = {math.floor(cosine * 1e4) / 1e4:g}"
