"""What compression did to each weight: squared error against the uncompressed one.

Weights are decoded as the executor decodes them, a block of rows at a time: none is ever held whole
in a wider type where its rows can be decoded alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.build.census import ProgramWeight, Weight, find_weights
from pytest_ane.build.decompress import decompress
from pytest_ane.core.arrays import FloatArray
from pytest_ane.mil.records import MLModel
from pytest_ane.reference.weights import StreamedWeight

_AT_ONCE = 1 << 18
"""Elements compared at a time: three buffers of 1 MB stay in the cache."""


@dataclass(frozen=True)
class Distortion:
    """One weight's squared error from compression.

    Attributes:
        name: the weight's, before compression.
        sse: sum of squared differences from the uncompressed weight; NaN where either is not
            finite.
        energy: sum of squares of the uncompressed weight.
    """

    name: str
    sse: float
    energy: float

    def __post_init__(self) -> None:
        if self.sse < 0 or self.energy < 0:
            raise ValueError("a sum of squares is negative")

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB, `10 log10(energy / sse)`; infinite where nothing is lost."""
        if not math.isfinite(self.sse) or not math.isfinite(self.energy):
            return math.nan
        if not self.sse:
            return math.inf
        ratio = self.energy / self.sse
        return 10 * math.log10(ratio) if ratio else -math.inf


def distortions(model: MLModel, against: MLModel) -> tuple[Distortion, ...]:
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
        _distortion(weight.weight, decompress(model, weight), decompress(against, originals[name]))
        for name, weight in _by_name(model).items()
        if name in originals and originals[name].weight.shape == weight.weight.shape
    )


def _by_name(model: MLModel) -> Mapping[str, ProgramWeight]:
    named: dict[str, list[ProgramWeight]] = {}
    for weight in find_weights(model):
        named.setdefault(weight.weight.name, []).append(weight)
    return {n: several[0] for n, several in named.items() if len({w.weight for w in several}) == 1}


def _distortion(kind: Weight, weight: Any, original: Any) -> Distortion:
    height, width = kind.shape[0], math.prod(kind.shape[1:])
    step = max(1, min(height, _AT_ONCE // max(width, 1)))
    buffers = np.empty((2, step, *kind.shape[1:]), np.float32)
    sse = energy = 0.0
    for start in range(0, height, step):
        stop = min(start + step, height)
        a = _rows(weight, start, stop, buffers[0, : stop - start])
        b = _rows(original, start, stop, buffers[1, : stop - start])
        with np.errstate(all="ignore"):
            energy += float(np.vdot(b, b))
            np.subtract(a, b, out=a)
            sse += float(np.vdot(a, a))
    return Distortion(kind.name, sse, energy)


def _rows(weight: Any, start: int, stop: int, out: FloatArray) -> FloatArray:
    if isinstance(weight, StreamedWeight):
        weight.rows(start, stop, out)
    else:
        np.copyto(out, weight[start:stop])
    return out
