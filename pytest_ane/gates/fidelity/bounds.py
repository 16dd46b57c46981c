"""Thresholds held against comparisons, and the sentence where one is not kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ane.gates.fidelity.comparison import GROUP, Comparison
from pytest_ane.manifest import OutputPolicy
from pytest_ane.metrics.error import decibels

Series = tuple[Sequence[float], Sequence[int]]
"""Values of a comparison, and the position of each."""


def cosines(c: Comparison) -> Series:
    """By live position."""
    return c.cosines, c.positions


def contributions(c: Comparison) -> Series:
    """Cosines with the residual path taken out."""
    return c.contributions, c.contributing


def relative(c: Comparison) -> Series:
    """Relative L2 errors."""
    return c.relative, c.positions


def ratios(c: Comparison) -> Series:
    """Signal-to-noise ratios in dB."""
    return decibels(c.relative).tolist(), c.positions


def errors(c: Comparison) -> Series:
    """The greatest absolute difference, a single value."""
    return (c.error_max,), (c.errors.absolute_at[0] if c.errors else 0,)


def relative_errors(c: Comparison) -> Series:
    """The greatest relative difference of a value, single as what follows; none in old evidence."""
    return ((c.errors.relative,), (c.errors.relative_at[0],)) if c.errors else ((), ())


def flat(c: Comparison) -> Series:
    """The cosine of all positions as one vector."""
    return ((c.errors.cosine,), (0,)) if c.errors else ((), ())


def groups(c: Comparison) -> Series:
    """The lowest cosine of a group of channels; in a position's place its first channel."""
    return ((c.errors.group_cosine,), (c.errors.group,)) if c.errors else ((), ())


@dataclass(frozen=True)
class Bound:
    """A threshold of one metric.

    Attributes:
        says: what is wrong beyond it, such as `below cosine {:g}`.
        of: the metric's values.
        form: how a value is written; `suffix` what follows it.
        least: whether values must reach the threshold; else they may not exceed it.
        step: to what a threshold that would have passed is rounded; significant digits if None.
        at: where a value is, of its position.
    """

    key: str
    says: str
    of: Callable[[Comparison], Series]
    form: str
    least: bool
    step: float | None
    suffix: str = ""
    at: str = "position {}"

    def broken(self, value: float, limit: float) -> bool:
        """Whether a value does not keep the limit; NaN keeps none."""
        return not (value >= limit if self.least else value <= limit)

    def worst(self, c: Comparison) -> tuple[float, int]:
        """The worst value and its position; NaN is worse than any number."""
        values, positions = self.of(c)
        at = int(np.argmin(values) if self.least else np.argmax(values))
        return float(values[at]), positions[at]

    def rank(self, c: Comparison) -> float:
        """Lowest for the worst."""
        value, _ = self.worst(c)
        return -math.inf if math.isnan(value) else value if self.least else -value

    def passing(self, value: float) -> str:
        """The strictest threshold of a few digits that a value keeps."""
        if not math.isfinite(value):
            return f"no {self.key}"
        return f"{self.key} = {self._rounded(value):g}"

    def _rounded(self, value: float) -> float:
        step = self.step or 10.0 ** (math.floor(math.log10(value)) - 3 if value > 0 else 0)
        return (math.floor if self.least else math.ceil)(value / step) * step


_COSINE = Bound("min-cosine", "below cosine {:g}", cosines, ".6f", True, 1e-4)
_FIRST = Bound("min-cosine-first", "below cosine {:g}", cosines, ".6f", True, 1e-4)
_CONTRIBUTION = Bound(
    "min-contribution", "below contribution cosine {:g}", contributions, ".6f", True, 1e-4
)
_RELATIVE = Bound("max-relative-l2", "above relative L2 error {:g}", relative, ".4g", False, None)
_SNR = Bound("min-snr", "below an SNR of {:g} dB", ratios, ".2f", True, 0.01, " dB")
_FLAT = Bound(
    "min-cosine-flat", "below flat cosine {:g}", flat, ".6f", True, 1e-4, at="all positions"
)
_GROUP = Bound(
    "min-cosine-group", "below group cosine {:g}", groups, ".6f", True, 1e-4,
    at=f"{GROUP} channels from {{}}",
)  # fmt: skip
_RATIO = Bound(
    "max-relative-error", "above a relative difference of {:g}", relative_errors, ".4g", False, None
)
_ERROR = Bound("max-error", "above an absolute difference of {:g}", errors, ".4g", False, None)


def broken(
    comparisons: Sequence[Comparison], limits: OutputPolicy, *, several: bool
) -> Iterator[str]:
    """A sentence for each threshold that live comparisons do not keep, or that none can be held to.

    `several` says that the shard has several outputs, which are then named.
    """
    live = [c for c in comparisons if c.live]
    rest = [c.rest for c in live if c.rest.live]
    first = [c.first for c in live if c.first.live]
    asked = (
        (_COSINE, limits.min_cosine, rest),
        (_FIRST, limits.min_cosine_first, first),
        (_CONTRIBUTION, limits.min_contribution, rest),
        (_RELATIVE, limits.max_relative_l2, rest),
        (_SNR, limits.min_snr, rest),
        (_FLAT, limits.min_cosine_flat, live),
        (_GROUP, limits.min_cosine_group, live),
        (_ERROR, limits.max_error, live),
        (_RATIO, limits.max_relative_error, live),
    )
    for bound, limit, parts in asked:
        if limit is not None:
            yield from _broken(bound, limit, parts, several)


def probes(comparisons: Sequence[Comparison]) -> int:
    """Probes, each of which may have several outputs."""
    return len({c.probe for c in comparisons})


def _broken(
    bound: Bound, limit: float, parts: Sequence[Comparison], several: bool
) -> Iterator[str]:
    measured = [c for c in parts if bound.of(c)[0]]
    if parts and not measured:
        yield _lacking(bound, parts)
    if bad := [c for c in measured if bound.broken(bound.worst(c)[0], limit)]:
        c = min(bad, key=bound.rank)
        value, position = bound.worst(c)
        output = f", output {c.output}" if several else ""
        hidden = bound is _CONTRIBUTION and c.residual is not None
        place = bound.at.format(position)
        ratio = f", residual {c.residual:.3g} times the contribution" if hidden else ""
        yield (
            f"{probes(bad)} of {probes(measured)} live probes are {bound.says.format(limit)}; "
            f"worst {value:{bound.form}}{bound.suffix} in {c.probe}{output}, {place} "
            f"(largest input {c.input_max:,.1f}, greatest absolute difference {c.error_max:.4g}"
            f"{ratio}); {bound.passing(value)} would have passed."
        )


def _lacking(bound: Bound, parts: Sequence[Comparison]) -> str:
    outputs = ", ".join(dict.fromkeys(c.output for c in parts))
    if bound is not _CONTRIBUTION:
        return f"{bound.key} is asked for, but this evidence is older than it; record it again."
    if all(c.kind == "extreme" for c in parts):
        return (
            f"{bound.key} is asked for, but it is not compared beside extreme inputs; add another "
            "kind to probes.kinds."
        )
    if any(c.idle for c in parts):
        return (
            f"{bound.key} is asked for, but output {outputs} is the residual path alone in every "
            "probe, so no contribution was compared."
        )
    return (
        f"{bound.key} is asked for, but no residual path is known of output {outputs}, or the "
        "evidence is older than it; ask it of shards that have one, or record the evidence again."
    )
