"""Synthetic weights from a seed: the same bytes on every machine, for any name and shape."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array, DoubleArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.base import JITTER, OUTLIER, Spread, Tokenizer, lookup

GENERATOR = "1"
"""Raised whenever a change here alters a single byte: part of every cache key."""

_LEVELS = 1 << 16
_CHUNK = 1 << 16
"""Values at a time, a multiple of 4: what is in flight stays in the processor's cache."""
_MOST = 1 << 32

SpreadOf = Callable[[str, tuple[int, ...]], Spread]


class SeededSource:
    """Any tensor of any shape, each value drawn from the `Spread` that the family gives its name.

    Value `i` of a tensor, in row-major order, is the 16 bits `i` of the raw stream of a PCG64 that
    SHA-256 of generator, seed and name seeds, as an index into 65,536 quantiles of the spread in
    fp16. NumPy guarantees raw streams (NEP 19), SHA-256 and the quantiles are exact, so the bytes
    are the same everywhere. A tensor's rows can be drawn without what comes before them, because
    PCG64 jumps ahead.

    Args:
        seed: any integer from 0.
        spread: the family's; `rows` asks it about the shape `(0, width)` where no height is given.
        config: what `value` finds, by the published keys of a configuration.
    """

    synthetic = True
    names: Collection[str] = ()

    def __init__(
        self, seed: int, spread: SpreadOf, config: Mapping[str, Any] | None = None
    ) -> None:
        self._seed, self._spread, self._config = seed, spread, config or {}
        self.label, self.keys = f"seeded {seed}", self._config.keys()

    def value(self, key: str) -> Any:
        return lookup(self._config, key, f"{self.label}: config has no key {key!r}.")

    def shape(self, name: str) -> tuple[int, ...]:
        raise SourceError(f"{self.label}: {name} has the shape that is asked for.")

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor in fp16, or those fp16 values in float32."""
        self._check(name, shape)
        out = np.empty(shape, dtype=dtype)
        self._fill(out.reshape(-1), name, self._table(name, shape, out.dtype), 0)
        return out

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:
        """Rows of a matrix `[*, width]`, `[height, width]` if given; neighbours drawn together."""
        self._check(name, (len(index), width))
        out = np.empty((len(index), width), dtype=dtype)
        table = self._table(name, (height or 0, width), out.dtype)
        for first, last in _runs(index):
            outside = height is not None and index[last - 1] >= height
            if index[first] < 0 or outside:
                row = max(index[first], height or 0) if outside else index[first]
                raise SourceError(f"{self.label}: {name} has no row {row}.")
            self._fill(out[first:last].reshape(-1), name, table, index[first] * width)
        return out

    @property
    def tokenizer(self) -> Tokenizer:
        raise SourceError(
            f"{self.label}: synthetic weights come without a tokenizer; give prompts as ids."
        )

    def _fill(self, out: Array, name: str, table: Array, start: int) -> None:
        if table[0] == table[-1]:
            out[:] = table[0]
            return
        text = f"pytest-ane/{GENERATOR}/{self._seed}/{name}".encode()
        bits = np.random.PCG64(int.from_bytes(hashlib.sha256(text).digest(), "little"))
        bits.advance(start // 4)
        skip = start % 4
        for begin in range(-skip, out.size, _CHUNK):
            words = -(-min(_CHUNK, out.size - begin) // 4)
            drawn = bits.random_raw(words).astype("<u8", copy=False).view("<u2")
            part = out[max(begin, 0) : begin + _CHUNK]
            drawn = drawn[max(-begin, 0) :][: part.size]
            np.take(table, drawn, out=part, mode="clip")

    def _table(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        if dtype not in (np.float16, np.float32):
            raise SourceError(f"{self.label}: {name} is given as float16 or float32, not {dtype}.")
        spread = self._spread(name, shape)
        values = (spread.mean + spread.std * _quantiles(spread.outliers)).astype(np.float16)
        if spread.zeros:
            values[:: round(1 / spread.zeros)] = 0
        return values.astype(dtype, copy=False)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) > 8 or any(n < 0 for n in shape) or math.prod(shape) > _MOST:
            raise SourceError(
                f"{self.label}: {name} of shape {shape} cannot be made; a tensor has at most 8 "
                f"axes and {_MOST:,} values."
            )


@lru_cache(maxsize=16)
def _quantiles(outliers: float) -> DoubleArray:
    """Quantiles of the standard normal at mid-points, and for a share of them of N(+-5, 0.5^2)."""
    share = round(_LEVELS * outliers)
    sides = [
        side * OUTLIER + JITTER * _normal(count)
        for side, count in ((-1, share // 2), (1, share - share // 2))
    ]
    table: DoubleArray = np.concatenate([_normal(_LEVELS - share), *sides])
    table.flags.writeable = False
    return table


def _normal(count: int) -> DoubleArray:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / count) for i in range(count)], dtype=np.float64)


def _runs(index: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches of an index that count upwards one by one, as `(first, past the last)`."""
    first = 0
    for i in range(1, len(index) + 1):
        if i == len(index) or index[i] != index[i - 1] + 1:
            yield first, i
            first = i
