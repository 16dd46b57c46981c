"""The fidelity measurement: an artifact's outputs against its reference's, probe by probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.backends import Runner
from pytest_ane.fidelity.cases import Case
from pytest_ane.fidelity.metrics import cosine, finite_fraction, max_abs_error
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class Comparison:
    """One output of one probe.

    Attributes:
        probe: name of the probe; `kind` what it is made of.
        length: positions T.
        input_max: largest magnitude that enters: squares overflow fp16 above 255.9.
        cosines: by live position, NaN where undefined.
        positions: index of each entry of `cosines`.
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

    @property
    def live(self) -> bool:
        """Whether anything was compared."""
        return bool(self.cosines)

    @property
    def worst(self) -> float:
        """Lowest cosine of a position, NaN if any is undefined or none was compared."""
        return float(np.min(self.cosines)) if self.cosines else float("nan")

    @property
    def worst_position(self) -> int:
        """Position of `worst`; NaN counts as lowest."""
        return self.positions[int(np.argmin(self.cosines))]


@dataclass(frozen=True)
class Fidelity:
    """All comparisons of one shard, or, without a reference, what is known of its outputs alone."""

    comparisons: tuple[Comparison, ...]
    compared: bool
    provenance: Mapping[str, Any]


def measure(
    runner: Runner, cases: Iterable[Case], *, compared: bool, provenance: Mapping[str, Any]
) -> Fidelity:
    """Run every case on the artifact and compare; `compared` is False without a reference."""
    found: list[Comparison] = []
    for case in cases:
        outputs = case.rows(runner.predict(case.inputs))
        expected = case.expected if compared else outputs
        for name in expected:
            found.append(_compare(case, name, outputs.get(name), expected[name]))
    return Fidelity(tuple(found), compared, dict(provenance))


def _compare(case: Case, name: str, actual: FloatArray | None, expected: FloatArray) -> Comparison:
    if actual is None or actual.shape != expected.shape:
        # An output that is absent or of another shape is as wrong as one full of NaN.
        actual = np.full(expected.shape, np.nan, dtype=np.float32)
    zero, reference_zero = ~actual.any(axis=1), ~expected.any(axis=1)
    live = ~(zero | reference_zero)
    return Comparison(
        kind=case.kind,
        probe=case.name,
        output=name,
        length=case.length,
        input_max=case.input_max,
        cosines=tuple(cosine(actual[live], expected[live]).tolist()),
        positions=_indices(live),
        both_zero=_indices(zero & reference_zero),
        one_zero=_indices(zero ^ reference_zero),
        finite=finite_fraction(actual),
        error_max=max_abs_error(actual, expected),
    )


def _indices(mask: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(mask))
