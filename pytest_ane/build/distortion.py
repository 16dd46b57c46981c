"""What compression did to each weight: squared error against the uncompressed one.

Weights are decoded as the executor decodes them, a block of rows at a time, so that no weight is
ever held whole in a wider type where its rows can be decoded alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ane.build.census import Found, find_weights
from pytest_ane.build.stages import DEEPEST
from pytest_ane.errors import ProgramError
from pytest_ane.mil.records import Model, Operation, Ref
from pytest_ane.reference.folding import Constants
from pytest_ane.reference.weights import StreamedWeight

Floats: TypeAlias = npt.NDArray[np.float32]

_AT_ONCE = 1 << 18
"""Elements compared at a time: three buffers of 1 MB stay in the cache."""


@dataclass(frozen=True)
class Distortion:
    """One weight's error.

    Attributes:
        name: the weight's, before compression.
        sse: sum of squared differences from the uncompressed weight; NaN where either is not
            finite.
        energy: sum of squares of the uncompressed weight.
    """

    name: str
    sse: float
    energy: float

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB, `10 log10(energy / sse)`; infinite where nothing is lost."""
        if not math.isfinite(self.sse) or not math.isfinite(self.energy):
            return math.nan
        if not self.sse:
            return math.inf
        return 10 * math.log10(self.energy / self.sse) if self.energy else -math.inf


def distortions(model: Model, against: Model) -> tuple[Distortion, ...]:
    """The errors of a package's weights, in program order.

    Args:
        model: the compressed package.
        against: the same program, uncompressed.

    Returns:
        One entry for each weight that both have under one name and in one shape; a weight of which
        there are several of one name is left out.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
    """
    originals = _by_name(against)
    return tuple(
        _distortion(name, _decoded(model, found), _decoded(against, originals[name]))
        for name, found in _by_name(model).items()
        if name in originals and originals[name].weight.shape == found.weight.shape
    )


def _by_name(model: Model) -> Mapping[str, Found]:
    found: dict[str, list[Found]] = {}
    for weight in find_weights(model):
        found.setdefault(weight.weight.name, []).append(weight)
    return {n: several[0] for n, several in found.items() if len({w.weight for w in several}) == 1}


def _decoded(model: Model, found: Found) -> Any:
    """A weight that is decoded by rows, or else as a whole."""
    constants = Constants(model, found.function.opset, "as-typed", memory_budget=0)
    for op in _below(found, model.path):
        constants.fold(op)
    return constants.values[found.operation.name]


def _below(found: Found, path: str) -> Iterable[Operation]:
    """A weight's operation and all that it is computed from, in the order of computation."""
    levels = [{found.operation: None}]
    while levels[-1]:
        if len(levels) > DEEPEST + 1:
            raise ProgramError(
                f"{path}: {found.weight.name} is expanded by more than {DEEPEST} operations, one "
                "after another."
            )
        arguments = (a for op in levels[-1] for group in op.inputs.values() for a in group)
        names = (a.name for a in arguments if isinstance(a, Ref))
        levels.append({found.producers[n]: None for n in names if n in found.producers})
    return dict.fromkeys(op for level in reversed(levels) for op in level)


def _distortion(name: str, weight: Any, original: Any) -> Distortion:
    height, width = weight.shape[0], math.prod(weight.shape[1:])
    step = max(1, min(height, _AT_ONCE // max(width, 1)))
    buffers = np.empty((2, step, *weight.shape[1:]), np.float32)
    sse = energy = 0.0
    for start in range(0, height, step):
        stop = min(start + step, height)
        a = _rows(weight, start, stop, buffers[0, : stop - start])
        b = _rows(original, start, stop, buffers[1, : stop - start])
        with np.errstate(all="ignore"):
            energy += float(np.vdot(b, b))
            np.subtract(a, b, out=a)
            sse += float(np.vdot(a, a))
    return Distortion(name, sse, energy)


def _rows(weight: Any, start: int, stop: int, out: Floats) -> Floats:
    if isinstance(weight, StreamedWeight):
        weight.rows(start, stop, out)
    else:
        np.copyto(out, weight[start:stop])
    return out
