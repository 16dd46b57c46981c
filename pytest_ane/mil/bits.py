"""Integers of fewer than eight bits, packed: a little-endian stream, lowest bits first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Packed:
    """Integers as they lie in the file.

    Attributes:
        data: uint8, flat: `ceil(size * bits / 8)` bytes, usually mapped from the file.
        bits: of one integer, 1 to 8.
        shape: of the integers.
        signed: two's complement (`int4`).
    """

    data: Bytes
    bits: int
    shape: tuple[int, ...]
    signed: bool = False

    @property
    def size(self) -> int:
        """Number of integers."""
        return math.prod(self.shape)

    def unpack(self) -> npt.NDArray[Any]:
        """The integers, one a byte: uint8, or int8 where signed."""
        values = unpack(self.data, self.bits, self.size).reshape(self.shape)
        if not self.signed:
            return values
        sign = 1 << (self.bits - 1)
        return ((values ^ sign).view(np.int8) - np.int8(sign)).astype(np.int8)


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that `count` integers of `bits` take."""
    return -(-count * bits // 8)


def unpack(data: Bytes, bits: int, count: int) -> Bytes:
    """The first `count` integers of a stream, one a byte.

    Integers of 3 and 6 bits straddle bytes, but every third byte ends with one: the stream is
    cut into words of the fewest whole bytes that hold whole integers.
    """
    if bits == 8:
        return data[:count]
    width = math.lcm(bits, 8) // 8
    words = _words(data[: packed_bytes(count, bits)], width)
    shifts = np.arange(0, 8 * width, bits, dtype=words.dtype)
    values = (words[:, None] >> shifts) & words.dtype.type((1 << bits) - 1)
    return values.astype(np.uint8).reshape(-1)[:count]


def _words(data: Bytes, width: int) -> npt.NDArray[Any]:
    if width == 1:
        return data
    padded = np.zeros((-(-data.size // width), 4), dtype=np.uint8)
    whole = data.size // width
    padded[:whole, :width] = data[: whole * width].reshape(whole, width)
    padded[whole:, : data.size - whole * width] = data[whole * width :]
    return padded.view("<u4").reshape(-1)
