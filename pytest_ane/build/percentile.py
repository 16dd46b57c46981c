"""Pruning by magnitude for weights of any size.

coremltools 9.0 asks `numpy.percentile` for the largest magnitude to set to zero. Of fp16 values
numpy computes the position in fp16 as well (its issue 29003, there in 2.3): beyond 65,504 elements
that overflows, the answer is NaN, and the whole weight is stored unpruned, in the sparse form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt


@contextmanager
def exact_percentiles() -> Iterator[None]:
    """Let coremltools' passes, and nobody else, see a `numpy` whose percentile is exact."""
    import coremltools.optimize.coreml._quantization_passes as passes

    numpy = SimpleNamespace(**{**vars(np), "percentile": percentile})
    with patch.object(passes, "np", numpy):
        yield


def percentile(values: npt.NDArray[Any], q: float) -> Any:
    """The value below which, itself included, at least `q` percent of the values lie.

    Where numpy interpolates between two values this is the lower one, so that just as many values
    are at most as large.
    """
    flat = values.ravel()
    position = math.floor((flat.size - 1) * q / 100)
    return np.partition(flat, position)[position]
