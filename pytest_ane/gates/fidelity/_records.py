"""The records of a fidelity measurement: numbers without any opinion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, pairwise
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from pytest_ane.gates.verdict import Bound, Side
from pytest_ane.manifest.policy import FidelityPolicy, OutputPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.metrics.tensors import is_cosine
from pytest_ane.probes.error_budget import Error, ErrorBudget
from pytest_ane.probes.scales import Edge


@dataclass(frozen=True)
class Comparison:
    """One output of one probe.

    Attributes:
        probe: name of the probe; `kind` what it is made of.
        length: positions T.
        input_max: largest magnitude that enters: squares overflow fp16 above 255.9.
        cosines: by live position, NaN where undefined.
        positions: position in the prompt of each entry of `cosines`.
        both_zero: positions where artifact and reference are (near) zero: agreement.
        one_zero: positions where exactly one of them is.
        finite: share of finite values in the artifact's output.
        error_max: greatest absolute difference; NaN if any value is.
        contributions: cosines with the residual path taken out, to six digits, by live position
            that is not `idle`; none where there is no residual path.
        idle: live positions where neither side adds anything to the residual: agreement.
        one_adds: positions where exactly one side adds to a residual path that is known.
        residual: median of |residual| / |contribution| over the positions of `contributions`.
        relative: relative L2 error by live position, to five digits, NaN where undefined.
        spoilt: positions with a value that is not finite.
        experts: those active in the reference at each position of `one_zero`, of a routed shard.
        undefined: share of the reference's values that are NaN or infinite: the inputs are none
            that it takes, and nothing is compared.
        undecided: positions that were not compared: rounding to fp16 decides which experts are
            chosen there.
        causal: whether position 0 sees itself alone; where it does not, it is judged as all others.
    """

    kind: str
    probe: str
    output: str
    length: int
    input_max: float
    cosines: tuple[float, ...]
    positions: tuple[int, ...]
    both_zero: tuple[int, ...]
    one_zero: tuple[int, ...]
    finite: float
    error_max: float
    contributions: tuple[float, ...] = ()
    idle: tuple[int, ...] = ()
    residual: float | None = None
    relative: tuple[float, ...] = ()
    spoilt: tuple[int, ...] = ()
    experts: tuple[tuple[int, ...], ...] = ()
    one_adds: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    undefined: float = 0.0
    causal: bool = True

    def __post_init__(self) -> None:
        live = len(self.positions)
        for what, values, count in (
            ("cosines", self.cosines, live),
            ("errors", self.relative, live),
            ("contributions", self.contributions, len(self.contributing)),
            ("experts", self.experts, len(self.one_zero)),
        ):
            may_be_left_out = what in ("contributions", "experts")
            if len(values) != count and (values or not may_be_left_out):
                raise ValueError(f"{len(values)} {what} at {count} positions")
        if not all(map(is_cosine, (*self.cosines, *self.contributions))):
            raise ValueError("a cosine is neither in -1..1 nor NaN")
        apart = (self.both_zero, self.one_zero, self.idle, self.one_adds, self.spoilt)
        every = (self.positions, *apart, self.undecided)
        ascend = all(a < b for each in every for a, b in pairwise((-1, *each)))
        if not ascend or not {*self.idle} <= {*self.positions}:
            raise ValueError("positions do not ascend from 0 on")
        if any(value < 0 for value in (*self.relative, self.residual or 0)):
            raise ValueError("a relative error or a ratio of norms is negative")
        for share in (self.finite, self.undefined):
            if not 0 <= share <= 1:
                raise ValueError(f"{share} is no share of finite values")

    @property
    def live(self) -> bool:
        return bool(self.cosines)

    @cached_property
    def worst(self) -> float:
        """Lowest cosine of a position, NaN if any is undefined or none was compared."""
        return float(np.min(self.cosines)) if self.cosines else math.nan

    @cached_property
    def contributing(self) -> tuple[int, ...]:
        idle = {*self.idle}
        return tuple(p for p in self.positions if p not in idle)

    @property
    def apart(self) -> bool:
        """Whether position 0 is reported separately, as that of a captured probe is."""
        return self.causal and self.kind == "captured"

    @cached_property
    def first(self) -> Comparison:
        """Position 0 where it is `apart`, else empty."""
        return self.at(lambda position: self.apart and position == 0)

    @cached_property
    def rest(self) -> Comparison:
        """All positions but those of `first`."""
        return self.at(lambda position: not self.apart or position > 0)

    def at(self, wanted: Callable[[int], bool]) -> Comparison:
        """What is known by position, at some of the live positions."""
        kept = [wanted(position) for position in self.positions]
        if all(kept):
            return self
        added = map(wanted, self.contributing)
        return replace(
            self,
            cosines=tuple(compress(self.cosines, kept)),
            positions=tuple(compress(self.positions, kept)),
            contributions=tuple(compress(self.contributions, added)),
            idle=tuple(filter(wanted, self.idle)),
            relative=tuple(compress(self.relative, kept)),
        )


@dataclass(frozen=True)
class Covered:
    """Something of a shard, such as `state k_cache`, that its probes exercise, or why not."""

    what: str
    how: str
    exercised: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Unmoved:
    """An output that no probe shows to depend on the input.

    Attributes:
        how: `zero` or the `same` in all probes; `alone`, where no two probes can be compared.
        constant: whether, in the program, no input leads to it, though to others.
        whole: whether its values are whole numbers or labels, which may well be the same.
    """

    output: str
    how: Literal["zero", "same", "alone"]
    constant: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Fidelity:
    """All comparisons of one shard, or, without a reference, what is known of its outputs alone.

    Attributes:
        comparisons: one for each output of each probe; `compared` if there is a reference.
        budget: what function, fp16 and compression cost by themselves; None where the uncompressed
            program is not known.
        total: the artifact's whole error as its types say; None without a budget.
        unsplit: why there is no budget.
        interface: where its inputs, outputs and states are not those that family, builder or
            reference package declares; None where none was asked.
        adapted: differences from a reference package that callers need not heed; None without one.
        coverage: what the probes exercise; None where nobody looked.
        unmoved: outputs that no probe moves; None with a reference that is no package, and where
            nobody looked.
        arithmetic: in which `comparisons` were computed; a device's own counts as `typed`.
        cost: how far the run in the ANE's arithmetic is from that as typed; None as typed, and
            without a reference.
        rules: by which rules of the ANE it was computed.
        edge: up to which size of inputs an own package is right; None where no range is unknown.
        same_module: whether one hand wrote the reference and the converted form; None without a
            reference, and where nobody looked.
        overflow: what made the first NaN or infinity where probes are off; empty without any.
    """

    comparisons: tuple[Comparison, ...]
    compared: bool
    provenance: Mapping[str, Any]
    budget: ErrorBudget | None = None
    total: Error | None = None
    unsplit: str = ""
    interface: tuple[str, ...] | None = None
    adapted: tuple[str, ...] | None = None
    coverage: tuple[Covered, ...] | None = None
    unmoved: tuple[Unmoved, ...] | None = None
    arithmetic: Arithmetic = "typed"
    cost: Error | None = None
    rules: RuleShares = field(default_factory=RuleShares)
    same_module: bool | None = None
    overflow: str = ""
    edge: Edge | None = None


# Metrics of fidelity: values of a comparison, and which comparisons each is held against.

Series = tuple[Sequence[float], Sequence[int]]
"""Values of a comparison, and the position (or first channel) of each."""


@dataclass(frozen=True)
class Metric:
    """One number of how close an output is, and how it is held against a threshold.

    Attributes:
        key: the threshold in `policy.fidelity`.
        figure: name of the worst value over all probes.
        label: how people call it; also the head of its column.
        of: values of a comparison.
        part: which positions count: all, or those besides position 0 of captured probes, or it.
        good: the side of the threshold that passes.
        step: to what a threshold that would have passed is rounded; significant digits if None.
        worth: beyond this value no threshold is offered: the shard is wrong, not the threshold.
    """

    key: str
    figure: str
    label: str
    of: Callable[[Comparison], Series]
    part: Literal["all", "rest", "first"] = "rest"
    good: Side = "above"
    step: float | None = 1e-4
    worth: float | None = 0.9

    def worst(self, c: Comparison) -> tuple[float, int]:
        """The worst value of a comparison and its position; NaN is worse than any number."""
        values, positions = self.of(c)
        at = int(np.argmin(values) if self.good == "above" else np.argmax(values))
        return float(values[at]), positions[at]

    def rank(self, c: Comparison) -> float:
        """Lowest for the worst."""
        value, _ = self.worst(c)
        return -math.inf if math.isnan(value) else value if self.good == "above" else -value

    def passing(self, value: float) -> str:
        """The strictest threshold of a few digits that a value keeps; empty beyond `worth`."""
        if not math.isfinite(value):
            return f"no {self.key} would have passed"
        if self.worth is not None and not Bound(self.worth, self.good).passes(value):
            return ""
        step = self.step or 10.0 ** (math.floor(math.log10(value)) - 3 if value > 0 else 0)
        kept = (math.floor if self.good == "above" else math.ceil)(value / step) * step
        return f"{self.key} = {kept:g} would have passed"


COSINES = attrgetter("cosines", "positions")
CONTRIBUTIONS = attrgetter("contributions", "contributing")
MIN_COSINE = Metric("min-cosine", "cosine.min", "cosine", COSINES)
MEAN_COSINE = Metric("min-cosine", "cosine.seeded", "mean cosine", COSINES)
"""Of seeded probes where there is an error budget: see `Group`."""
FIRST_COSINE = Metric("min-cosine", "cosine.first.min", "cosine at position 0", COSINES, "first",
                      worth=math.inf)  # fmt: skip
"""No threshold of its own is offered: it follows from `min-cosine`."""
MIN_CONTRIBUTION = Metric("min-contribution", "contribution.min", "contribution", CONTRIBUTIONS)
MAX_RELATIVE_L2 = Metric(
    "max-relative-l2", "relative_l2.max", "relative L2", attrgetter("relative", "positions"),
    good="below", step=None, worth=0.5,
)  # fmt: skip
MEAN_L2 = replace(MAX_RELATIVE_L2, figure="relative_l2.seeded", label="mean relative L2")
MEANS = (MEAN_COSINE, MEAN_L2)
METRICS = (MIN_COSINE, MEAN_COSINE, FIRST_COSINE, MIN_CONTRIBUTION, MAX_RELATIVE_L2, MEAN_L2)
"""Every metric, in the order of the columns of reports."""


def greatest_l2(cosine: float) -> float:
    """The relative L2 error that a least cosine allows where none is set.

    Vectors of one length at this angle are sqrt(2 - 2 cosine) apart, and they may differ as much in
    their lengths.
    """
    return 2 * math.sqrt(1 - cosine)


def threshold(metric: Metric, limits: OutputPolicy, *, implied: bool) -> float | None:
    """A metric's threshold; `implied` says whether two that are not set follow from a cosine.

    A cosine sees neither the size of an output nor what is small beside its residual path; the
    contribution's angle may be twice its own. A looser one than the default's loosens neither. That
    of position 0 always follows: the attention sink magnifies errors there three times.
    """
    limit: float | None = getattr(limits, metric.key.replace("-", "_"))
    cosine = limits.min_cosine
    if metric is FIRST_COSINE and cosine is not None:
        return max(round(1 - 3 * (1 - cosine), 4), 0.0)
    if limit is not None or cosine is None or not implied:
        return limit
    cosine = max(cosine, FidelityPolicy().min_cosine)
    if metric.key == MAX_RELATIVE_L2.key:
        return round(greatest_l2(cosine), 4)
    if metric is MIN_CONTRIBUTION:
        return round(2 * cosine**2 - 1, 4)
    return None


@dataclass(frozen=True)
class Group:
    """Comparisons that are judged by the same thresholds.

    Attributes:
        comparisons: of the outputs with these thresholds.
        pool: whether `min-cosine` is held against the mean of seeded probes' positions, not against
            each. An error budget sees each better, and a minimum over random positions hangs on the
            seed: 15 of 600 right blocks were red for it. Without a budget nothing else sees one
            position. With `implied` so is `max-relative-l2`.
        implied: whether two thresholds that are not set follow from a cosine.
    """

    comparisons: tuple[Comparison, ...]
    pool: bool
    implied: bool = True

    def parts(self, metric: Metric) -> list[Comparison]:
        live = [c for c in self.comparisons if c.live]
        if metric.part != "all":
            live = [c.rest if metric.part == "rest" else c.first for c in live]
        parts = [c for c in live if c.live]
        pool = self.pool and (self.implied or metric.key == MIN_COSINE.key)
        if metric in (MIN_COSINE, MAX_RELATIVE_L2) and pool:
            return [c for c in parts if c.kind in _REAL]
        if metric not in MEANS:
            return parts
        pooled = [c for c in parts if pool and c.kind not in (*_REAL, "unit-norm")]
        pools = grouped(((c.kind == "extreme", c.output), c) for c in pooled)
        return list(map(_pooled, pools.values()))

    def limit(self, metric: Metric, limits: OutputPolicy) -> float | None:
        """A metric's `threshold`; one of contributions follows only where there are some."""
        follows = metric is MIN_CONTRIBUTION and limits.min_contribution is None
        if follows and not any(metric.of(c)[0] for c in self.parts(metric)):
            return None
        return threshold(metric, limits, implied=self.implied)


_REAL = ("captured", "golden")
"""Kinds of what the model really meets. Of others `extreme` has a mean by itself, for there the
residual path hides everything, and rows of norm 1 none: theirs is a thousandth of a real one's."""


def _pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """Seeded probes as one, whose cosine and relative L2 are means over all positions."""
    worst = min(comparisons, key=MIN_COSINE.rank)
    cosine, relative = (
        float(np.mean([x for c in comparisons for x in getattr(c, name)]))
        for name in ("cosines", "relative")
    )
    kind = "extreme" if worst.kind == "extreme" else "seeded"
    count = len({c.probe for c in comparisons})
    return replace(
        worst.at(lambda position: position == worst.positions[0]),
        probe=f"{count} {kind} probe{'' if count == 1 else 's'}",
        cosines=(cosine,),
        relative=(relative,),
    )
