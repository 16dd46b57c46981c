"""A fidelity measurement in words and in facts for reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pytest_ane.gates.fidelity.bounds import Series, contributions, cosines, probes, relative
from pytest_ane.gates.fidelity.comparison import GROUP, Comparison, Fidelity
from pytest_ane.metrics.error import decibels

_FULL = 5
"""Probes, the worst, of which every metric is shown."""
_SQUARES, _VALUES = 255.9, 65_504.0


def summary(fidelity: Fidelity) -> str:
    """One line, what matters most first, for a report cuts it at a terminal's width."""
    if not fidelity.compared:
        bad = 1 - min(c.finite for c in fidelity.comparisons)
        finite = f"{share(bad)} NaN or infinite" if bad else "all finite"
        return f"runs, {finite} (no reference: cosine not asked)"
    values, first = _of(fidelity.rest, cosines), _of(fidelity.first, cosines)
    low, mean = (float(np.min(values)), float(np.mean(values))) if values else (math.nan, math.nan)
    text = f"cosine min {low:.6f} mean {mean:.6f}"
    text += f" (position 0: {np.min(first):.4f})" if first and not np.min(first) >= low else ""
    added = _of(fidelity.rest, contributions)
    parts = [text, *([f"contribution min {np.min(added):.4f}"] if added else [])]
    count, live = probes(fidelity.comparisons), probes([c for c in fidelity.comparisons if c.live])
    parts += [f"{count} probes", *([f"{count - live} all zero"] if count > live else [])]
    return " · ".join([*parts, f"max |x| {_input(fidelity)}"])


def facts(fidelity: Fidelity) -> dict[str, float | int | str]:
    """Numbers for machines: those of position 0 of captured probes are called `first`."""
    found: dict[str, float | int | str] = {
        "probes": probes(fidelity.comparisons),
        "probes.live": probes([c for c in fidelity.comparisons if c.live]),
        "input.max": float(np.max([c.input_max for c in fidelity.comparisons])),
        "finite": min(c.finite for c in fidelity.comparisons),
    }
    return found | (dict(_compared(fidelity)) if fidelity.compared else {})


def details(fidelity: Fidelity) -> tuple[str, ...]:
    """A line for each comparison, worst first; the worst five with every metric."""
    ranked = sorted(fidelity.comparisons, key=_rank)
    return tuple(_line(c, i < _FULL) for i, c in enumerate(ranked))


def share(value: float) -> str:
    """A share as per cent, never rounded down to nothing."""
    return f"{value:.2%}" if value >= 1e-4 else "less than 0.01%"


def _compared(fidelity: Fidelity) -> Iterator[tuple[str, float]]:
    kinds = list(dict.fromkeys(c.kind for c in fidelity.comparisons))
    for name, of in (("cosine", cosines), ("contribution", contributions)):
        if values := _of(fidelity.rest, of):
            yield f"{name}.min", float(np.min(values))
            yield f"{name}.mean", float(np.mean(values))
        for kind in kinds:
            if of_kind := _of((c for c in fidelity.rest if c.kind == kind), of):
                yield f"{name}.{kind}.min", float(np.min(of_kind))
        if first := _of(fidelity.first, of):
            yield f"{name}.first.min", float(np.min(first))
    if hidden := [c.residual for c in fidelity.rest if c.residual is not None]:
        yield "contribution.residual", float(np.max(hidden))
    if values := _of(fidelity.rest, relative):
        yield "relative_l2.max", float(np.max(values))
        yield "snr.min", float(decibels(np.max(values)))
    if further := [c.errors for c in fidelity.comparisons if c.errors]:
        yield "cosine.group.min", float(np.min([e.group_cosine for e in further]))
        yield "error.max", float(np.max([c.error_max for c in fidelity.comparisons if c.errors]))
        yield "error.relative.max", float(np.max([e.relative for e in further]))


def _of(comparisons: Iterable[Comparison], of: Callable[[Comparison], Series]) -> list[float]:
    return [value for c in comparisons for value in of(c)[0]]


def _input(fidelity: Fidelity) -> str:
    """The largest input, and what it does to fp16."""
    most = float(np.max([c.input_max for c in fidelity.comparisons]))
    over = "fp16 overflows above 65,504" if most > _VALUES else "fp16 squares overflow above 255.9"
    return f"{most:,.0f}" + (f" ({over})" if most > _SQUARES else "")


def _rank(c: Comparison) -> float:
    """Lowest cosine first, an undefined one before any number; what is zero comes last."""
    if not c.live:
        return 2.0
    return -2.0 if math.isnan(c.worst) else c.worst


def _line(c: Comparison, full: bool) -> str:
    parts = [f"cosine {c.worst:.6f} at position {c.worst_position}" if c.live else "nothing live"]
    if c.both_zero:
        parts.append(f"{len(c.both_zero)} positions zero on both sides")
    if c.contributions:
        at = int(np.argmin(c.contributions))
        parts.append(f"contribution {c.contributions[at]:.6f} at position {c.contributing[at]}")
    parts += _further(c) if full else ()
    return f"{c.probe} -> {c.output}: {', '.join(parts)}, max |x| {c.input_max:,.1f}"


def _further(c: Comparison) -> Iterator[str]:
    if c.residual is not None:
        yield f"residual {c.residual:.3g} times it"
    if c.idle:
        yield f"{len(c.idle)} positions the residual alone on both sides"
    if c.relative:
        most = float(np.max(c.relative))
        yield f"relative L2 {most:.4g} (SNR {float(decibels(most)):.2f} dB)"
    if (e := c.errors) is not None:
        yield f"flat cosine {e.cosine:.6f}"
        yield f"channels {e.group} to {e.group + GROUP - 1} {e.group_cosine:.6f}"
        yield f"greatest difference {c.error_max:.4g} {_place(e.absolute_at)}"
        yield f"greatest relative one {e.relative:.4g} {_place(e.relative_at)}"


def _place(at: tuple[int, int]) -> str:
    return f"at position {at[0]}, channel {at[1]}"
