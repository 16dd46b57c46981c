"""Faults of bytes: what a disk, a cut copy or a script does to the files of a right package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.battery.brought.kind import Flaw
from tests.battery.packages import rewrite


def _set(index: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(values: Any) -> Any:
        values[index] = change(values[index])
        return values

    return changed


def _flaw(name: str, part: str, change: Callable[[Any], Any], dtype: Any = np.uint8) -> Flaw:
    return Flaw(name, "bytes", "compression", rewrite(part, change, dtype))


def _bit(values: Any) -> Any:
    values[len(values) // 9 * 3 + 2] ^= 0x80  # The highest of an index of 6 bits.
    return values


def _page(values: Any) -> Any:
    values[len(values) // 2 : len(values) // 2 + len(values) // 4] = 0
    return values


def _rows(values: Any) -> Any:
    half = len(values) // 2
    return np.concatenate([values[half:], values[:half]])


_LUT, _INDICES = "_palettized.lut", "_palettized.indices"
PALETTES = [
    _flaw("a table is zero", _LUT, _set(-1, lambda t: t * 0), np.float16),
    _flaw("a bit of an index is flipped", _INDICES, _bit),
    _flaw("an entry of a table is 1.0", _LUT, _set((0, ..., 20, 0), np.ones_like), np.float16),
    _flaw("the table times 1.02", _LUT, lambda t: t * np.float16(1.02), np.float16),
    _flaw("halves of the rows are exchanged", _INDICES, _rows),
    _flaw("a page of indices is zero", _INDICES, _page),
    _flaw("a table is reversed", _LUT, _set(0, lambda t: t[..., ::-1, :]), np.float16),
]
"""The last table is the only one where a tensor has one."""
_DATA, _SCALE = "quantized.data", "quantized.scale"
INTEGERS = [
    _flaw("halves of the rows are exchanged", _DATA, _rows),
    _flaw("a scale is doubled", _SCALE, _set(3, lambda s: s * 2), np.float16),
    _flaw("a page of integers is zero", _DATA, _page),
]
BLOCKS = [
    _flaw("scales of a row are zero", _SCALE, _set(3, lambda s: s * 0), np.float16),
    _flaw("halves of the rows are exchanged", _DATA, _rows),
]
_NORM = "an eighth of a norm's weights is zero"
NORM = _flaw(_NORM, "gain_to_fp16.val", _set(slice(0, 8), np.zeros_like), np.float16)
NORMS = [_flaw(_NORM, "second_to_fp16.val", _set(slice(0, 8), np.zeros_like), np.float16)]
