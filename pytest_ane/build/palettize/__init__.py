"""Fast palettization: the palettes and the packages of coremltools, in a fraction of the time.

numba, which compiles the arithmetic, is imported when the first weight is palettized.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.build.palettize.choose import constants
from pytest_ane.manifest import Palettize

__all__ = ["constants", "palette", "palettize"]


def palettize(
    source: Path,
    destination: Path,
    settings: Mapping[str, Palettize],
    *,
    threads: int | None = None,
    subject: str | None = None,
) -> tuple[str, ...]:
    """Write a palettized copy of a package; see `package.palettize`."""
    from pytest_ane.build.palettize import package

    return package.palettize(source, destination, settings, threads=threads, subject=subject)


def palette(
    weights: npt.NDArray[Any], nbits: int
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.uint8]]:
    """The best palette of 2^nbits fp16 values, in the form of coremltools' `lut_function`.

    Args:
        weights: any shape, not empty; taken as the fp16 values they are stored as.
        nbits: 1 to 8.

    Returns:
        `lut` float16 `[2^nbits]` and `indices` uint8 of the size of `weights`, flat.

    Raises:
        ValueError: a weight is NaN, or infinite in fp16.
    """
    from pytest_ane.build.palettize.palettes import find_palettes

    with np.errstate(over="ignore"):
        stored = weights.astype(np.float16)
    found = find_palettes(stored, "kmeans", nbits, groups=1, axis=0, threads=1)
    return found.luts[0], found.indices.reshape(-1)
