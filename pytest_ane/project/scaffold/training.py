"""Whether a model was trained: an untrained one finds no text likely.

transformers draws all matrices with one standard deviation, `initializer_range`. Training gives
each a deviation of its own: those of SmolLM2-135M lie between 0.63 and 2.2 of their median, those
of MiniLM between 0.14 and 1.4. Of untrained models of all families, each is within 4 % of it.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from pytest_ane.core.errors import SourceError
from pytest_ane.project.scaffold.shapes import StoredSource

_MATRICES, _LEAST = 16, 4
"""Matrices that are looked at, and the fewest that tell."""
_LARGE, _NUMBERS = 1024, 16_384
"""Numbers of a matrix that counts, and how many of it are read, in whole rows."""
_ALIKE = 0.1
"""Share by which a deviation may differ from the median: over four times the chance of `_LARGE`."""


def is_trained(source: StoredSource) -> bool:
    """Whether the deviations of some matrices differ, or too few matrices are there to tell."""
    shapes = {name: source.shape(name) for name in sorted(source.names)}
    names = [n for n, shape in shapes.items() if len(shape) == 2 and math.prod(shape) >= _LARGE]
    chosen = names[:: -(-len(names) // _MATRICES) or 1]
    deviations = []
    for name in chosen:
        height, width = shapes[name]
        count = min(height, -(-_NUMBERS // width))
        first = (height - count) // 2  # The row of a padding token is zero, and is often the first.
        with suppress(SourceError), np.errstate(all="ignore"):
            rows = source.rows(name, range(first, first + count), width, height)
            deviations.append(float(np.std(rows)))
    if len(deviations) < _LEAST:
        return True
    middle = float(np.median(deviations))
    return any(not abs(each - middle) <= _ALIKE * middle for each in deviations)
