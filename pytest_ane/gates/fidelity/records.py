"""The records of a fidelity measurement: numbers without any opinion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.metrics.tensors import is_cosine
from pytest_ane.probes.error_budget import Error, ErrorBudget

T = TypeVar("T")


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
        if len(self.cosines) != len(self.positions):
            raise ValueError(f"{len(self.cosines)} cosines at {len(self.positions)} positions")
        if self.contributions and len(self.contributions) != len(self.contributing):
            raise ValueError(
                f"{len(self.contributions)} contributions at {len(self.contributing)} positions"
            )
        if len(self.relative) != len(self.positions):
            raise ValueError(f"{len(self.relative)} errors at {len(self.positions)} positions")
        if self.experts and len(self.experts) != len(self.one_zero):
            raise ValueError(f"experts of {len(self.experts)} positions, not {len(self.one_zero)}")
        if not all(map(is_cosine, (*self.cosines, *self.contributions))):
            raise ValueError("a cosine is neither in -1..1 nor NaN")
        apart = (self.both_zero, self.one_zero, self.idle, self.one_adds, self.spoilt)
        if not all(map(_ascending, (self.positions, *apart, self.undecided))) or not {
            *self.idle
        } <= {*self.positions}:
            raise ValueError("positions do not ascend from 0 on")
        if any(value < 0 for value in (*self.relative, self.residual or 0)):
            raise ValueError("a relative error or a ratio of norms is negative")
        for share in (self.finite, self.undefined):
            if not 0 <= share <= 1:
                raise ValueError(f"{share} is no share of finite values")

    @property
    def live(self) -> bool:
        """Whether anything was compared."""
        return bool(self.cosines)

    @cached_property
    def worst(self) -> float:
        """Lowest cosine of a position, NaN if any is undefined or none was compared."""
        return float(np.min(self.cosines)) if self.cosines else math.nan

    @cached_property
    def contributing(self) -> tuple[int, ...]:
        """Position of each entry of `contributions`."""
        idle = {*self.idle}
        return tuple(p for p in self.positions if p not in idle)

    @cached_property
    def first(self) -> Comparison:
        """Position 0 of a captured probe (reported separately), empty otherwise."""
        apart = self.causal and self.kind == "captured"
        return self.at(lambda position: apart and position == 0)

    @cached_property
    def rest(self) -> Comparison:
        """All positions but those of `first`."""
        apart = self.causal and self.kind == "captured"
        return self.at(lambda position: not apart or position > 0)

    def at(self, wanted: Callable[[int], bool]) -> Comparison:
        """What is known by position, at some of the live positions."""
        kept = [wanted(position) for position in self.positions]
        if all(kept):
            return self
        of_contributions = [wanted(position) for position in self.contributing]
        return replace(
            self,
            cosines=_kept(self.cosines, kept),
            positions=_kept(self.positions, kept),
            contributions=_kept(self.contributions, of_contributions),
            idle=tuple(filter(wanted, self.idle)),
            relative=_kept(self.relative, kept),
        )


@dataclass(frozen=True)
class Covered:
    """Something of a shard that its probes exercise, or leave out.

    Attributes:
        what: such as `state k_cache`.
        how: in a few words, or why not.
        exercised: whether they do.
        remedy: what to do where they do not.
    """

    what: str
    how: str
    exercised: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Unmoved:
    """An output that no probe shows to depend on the input; asked where there is no reference.

    Attributes:
        output: its name.
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
        comparisons: one for each output of each probe.
        compared: whether there is a reference.
        provenance: backend, machine, versions, digests.
        budget: what function, fp16 and compression cost by themselves; None where the uncompressed
            program is not known.
        total: the artifact's whole error as its types say; None without a budget.
        unsplit: why there is no budget.
        interface: where its inputs, outputs and states are not those that family or builder
            declares; None where neither was asked.
        coverage: what the probes exercise; None where nobody looked.
        unmoved: outputs that no probe moves; None with a reference, and where nobody looked.
        arithmetic: in which `comparisons` were computed; a device's own counts as `typed`.
        cost: how far the run in the ANE's arithmetic is from that as typed; None as typed, and
            without a reference.
        rules: by which rules of the ANE it was computed.
    """

    comparisons: tuple[Comparison, ...]
    compared: bool
    provenance: Mapping[str, Any]
    budget: ErrorBudget | None = None
    total: Error | None = None
    unsplit: str = ""
    interface: tuple[str, ...] | None = None
    coverage: tuple[Covered, ...] | None = None
    unmoved: tuple[Unmoved, ...] | None = None
    arithmetic: Arithmetic = "typed"
    cost: Error | None = None
    rules: RuleShares = field(default_factory=RuleShares)


def _kept(values: tuple[T, ...], kept: Sequence[bool]) -> tuple[T, ...]:
    return tuple(compress(values, kept))


def _ascending(positions: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise((-1, *positions)))
