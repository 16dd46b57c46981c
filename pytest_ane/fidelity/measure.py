"""The fidelity measurement: an artifact's outputs against its reference's, probe by probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from pytest_ane.backends import Runner
from pytest_ane.errors import ExecutionError
from pytest_ane.fidelity.cases import Case, Rows
from pytest_ane.fidelity.metrics import cosine, finite_fraction, is_cosine, max_abs_error
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class Comparison:
    """One output of one probe.

    Attributes:
        probe: name of the probe; `kind` what it is made of.
        length: positions T.
        input_max: largest magnitude that enters: squares overflow fp16 above 255.9.
        cosines: by live position, NaN where undefined.
        positions: position in the prompt of each entry of `cosines`.
        both_zero: positions where artifact and reference are exactly zero: agreement.
        one_zero: positions where exactly one of them is.
        finite: share of finite values in the artifact's output.
        error_max: greatest absolute difference; NaN if any value is.
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

    def __post_init__(self) -> None:
        if len(self.cosines) != len(self.positions):
            raise ValueError(f"{len(self.cosines)} cosines at {len(self.positions)} positions")
        if not all(is_cosine(value) for value in self.cosines):
            raise ValueError("a cosine is neither in -1..1 nor NaN")
        if not all(map(_ascending, (self.positions, self.both_zero, self.one_zero))):
            raise ValueError("positions do not ascend from 0 on")
        if not 0 <= self.finite <= 1:
            raise ValueError(f"{self.finite} is no share of finite values")

    @property
    def live(self) -> bool:
        """Whether anything was compared."""
        return bool(self.cosines)

    @cached_property
    def worst(self) -> float:
        """Lowest cosine of a position, NaN if any is undefined or none was compared."""
        return float(np.min(self.cosines)) if self.cosines else float("nan")

    @property
    def worst_position(self) -> int:
        """Position of `worst`; NaN counts as lowest."""
        return self.positions[int(np.argmin(self.cosines))]

    @cached_property
    def first(self) -> Comparison:
        """The part at position 0 of a captured probe, which is reported apart; else nothing."""
        return self._part(lambda position: self.kind == "captured" and position == 0)

    @cached_property
    def rest(self) -> Comparison:
        """All positions but those of `first`."""
        return self._part(lambda position: self.kind != "captured" or position > 0)

    def _part(self, wanted: Callable[[int], bool]) -> Comparison:
        kept = [(c, p) for c, p in zip(self.cosines, self.positions, strict=True) if wanted(p)]
        cosines, positions = tuple(c for c, _ in kept), tuple(p for _, p in kept)
        return replace(self, cosines=cosines, positions=positions)


@dataclass(frozen=True)
class Fidelity:
    """All comparisons of one shard, or, without a reference, what is known of its outputs alone."""

    comparisons: tuple[Comparison, ...]
    compared: bool
    provenance: Mapping[str, Any]

    @cached_property
    def first(self) -> tuple[Comparison, ...]:
        """Position 0 of captured probes, which is reported apart."""
        return tuple(c.first for c in self.comparisons)

    @cached_property
    def rest(self) -> tuple[Comparison, ...]:
        """All that is not in `first`."""
        return tuple(c.rest for c in self.comparisons)


def measure(
    runner: Runner, cases: Iterable[Case], *, compared: bool, provenance: Mapping[str, Any]
) -> Fidelity:
    """Run every case on the artifact and compare; `compared` is False without a reference.

    Raises:
        ExecutionError: the artifact cannot be run, or lacks an output of the reference's shape.
    """
    found: list[Comparison] = []
    cases = list(cases)
    for case, outputs in zip(cases, _outputs(runner, cases), strict=True):
        expected = case.expected if compared else outputs
        for name in expected:
            actual = outputs.get(name)
            if actual is None or actual.shape != expected[name].shape:
                raise ExecutionError(_mismatch(case, name, outputs, expected[name]))
            found.append(_compare(case, name, actual, expected[name]))
        for name in outputs.keys() - expected.keys():
            # The reference says nothing of it, so it is not compared; NaN in it still fails.
            alone = _compare(case, name, outputs[name], outputs[name])
            found.append(replace(alone, cosines=(), positions=()))
    return Fidelity(tuple(found), compared, dict(provenance))


def _outputs(runner: Runner, cases: Sequence[Case]) -> list[Rows]:
    """Each case's rows of all its calls, one after another on a state of its own.

    All cases' first calls are made together, then their second ones, and so on.
    """
    states = [runner.make_state() for _ in cases]
    parts: list[list[Rows]] = [[] for _ in cases]
    for turn in range(max((len(case.calls) for case in cases), default=0)):
        at = [i for i, case in enumerate(cases) if turn < len(case.calls)]
        calls = [cases[i].calls[turn] for i in at]
        for i, outputs in zip(at, runner.predict_all(calls, [states[i] for i in at]), strict=True):
            parts[i].append(cases[i].rows(outputs))
    return [
        {name: np.concatenate([part[name] for part in mine]) for name in mine[0]} for mine in parts
    ]


def _compare(case: Case, name: str, actual: FloatArray, expected: FloatArray) -> Comparison:
    zero, reference_zero = ~actual.any(axis=1), ~expected.any(axis=1)
    live = ~(zero | reference_zero)
    return Comparison(
        kind=case.kind,
        probe=case.name,
        output=name,
        length=case.length,
        input_max=case.input_max,
        cosines=tuple(cosine(actual[live], expected[live]).tolist()),
        positions=_indices(live, case.start),
        both_zero=_indices(zero & reference_zero, case.start),
        one_zero=_indices(zero ^ reference_zero, case.start),
        finite=finite_fraction(actual),
        error_max=max_abs_error(actual, expected),
    )


def _mismatch(case: Case, name: str, outputs: Rows, expected: FloatArray) -> str:
    given = ", ".join(f"{key} {list(rows.shape)}" for key, rows in outputs.items()) or "nothing"
    return (
        f"{case.name}: the reference gives {name} {list(expected.shape)}, the artifact {given}; "
        "outputs are compared by name and must have one shape."
    )


def _indices(mask: Any, start: int) -> tuple[int, ...]:
    return tuple(start + int(i) for i in np.flatnonzero(mask))


def _ascending(positions: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise((-1, *positions)))
