"""Constant operands of products, prepared once: as fp16 numbers, or as codes with a scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor.ane.accumulator import Sums, Weight, sums
from pytest_ane.mlprogram.executor.ane.grades import Grade
from pytest_ane.mlprogram.executor.ane.integers import scaled_after, w8a8
from pytest_ane.mlprogram.executor.dtypes import round_fp16
from pytest_ane.mlprogram.executor.weights import HalfWeight, StreamedWeight

_AT_ONCE = 1 << 20
"""Elements of a streamed weight that are decoded at a time, so that they stay in the cache."""


@dataclass(frozen=True, eq=False)
class Factors:
    """A weight `[O, K, 1...]`, or an operand of matmul `[*B, O, K]`.

    Attributes:
        source: an array, or a weight that is held in fp16 or streamed.
        width: K.
        groups: of rows, each with vectors of its own.
        transposed: the last two axes are the other way round.
        scale: of the codes that the program says it is made of, which broadcasts to it.
    """

    source: Any
    width: int
    groups: int = 1
    transposed: bool = False
    scale: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the source."""
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """How well these sums are known, if those of fp16 numbers are known as `usual` says."""
        return usual

    @property
    def height(self) -> int:
        """O of an operand of matmul."""
        return self.shape[-1 if self.transposed else -2]

    @property
    def matrix(self) -> Array:
        """An operand of matmul as `[*B, O, K]`."""
        return self._turned(np.asarray(self.source))

    def _turned(self, array: Array) -> Array:
        return np.swapaxes(array, -1, -2) if self.transposed else array

    def rows(self, array: Array) -> Array:
        """An array of the source's shape as `[groups, O, K]`."""
        count = array.size // max(self.groups * self.width, 1)
        return self._turned(array).reshape(self.groups, count, self.width)

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums | None:
        """With `vectors [groups, P, K]` and `bias [groups, O]`; None for what has no rule."""
        source = self.source
        if not isinstance(source, StreamedWeight) or isinstance(source, HalfWeight):
            return sums(self._weight, vectors, bias)
        if self.groups > 1:
            return sums(Weight.of(self.rows(np.asarray(source))), vectors, bias)
        return Sums.joined(list(self._streamed(source, vectors, bias)))

    @cached_property
    def _weight(self) -> Weight:
        is_half = isinstance(self.source, HalfWeight)
        return Weight.of(self.rows(self.source.patterns if is_half else np.asarray(self.source)))

    def _streamed(
        self, source: StreamedWeight, vectors: Array, bias: Array | None
    ) -> Iterator[Sums]:
        """Sums of some rows after the other, which are decoded in every call."""
        step = max(1, _AT_ONCE // max(self.width, 1))
        buffer = np.empty((min(step, source.shape[0]), *source.shape[1:]), source.dtype)
        for start in range(0, source.shape[0], step):
            stop = min(start + step, source.shape[0])
            rows = self.rows(source.rows(start, stop, buffer[: stop - start]))
            yield sums(Weight.of(rows), vectors, None if bias is None else bias[:, start:stop])


@dataclass(frozen=True, eq=False, kw_only=True)
class Codes(Factors):
    """The same of integers times a scale, which is the same for all of a row.

    Attributes:
        scale: broadcasts to the source.
    """

    scale: Array

    @property
    def is_exact(self) -> bool:
        """Whether the source is codes times scale, as it is unless another weight replaced it."""
        scale = self.rows(np.broadcast_to(self.scale, self.shape))
        with np.errstate(all="ignore"):
            product = round_fp16(np.rint(self.source / self.scale) * self.scale)
        per_row = bool(np.all(scale == scale[..., :1]))
        return per_row and np.array_equal(product, self.source)

    @cached_property
    def codes(self) -> tuple[Array, Array]:
        """Integers `[groups, O, K]` as float32, and their scales `[groups, O]`."""
        scale = self.rows(np.broadcast_to(self.scale, self.shape))[..., 0]
        return self.rows(np.rint(self.source / self.scale).astype(np.float32)), scale


@dataclass(frozen=True, eq=False, kw_only=True)
class LateScale(Codes):
    """Codes that are summed before they are scaled; see `integers.scaled_after`."""

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """Inferred."""
        return Grade.INFERRED

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums:
        """As `Factors.sums`; the bias is added after the scale."""
        return scaled_after(self._late, vectors, self.codes[1], bias)

    @cached_property
    def _late(self) -> Weight:
        return Weight.of(self.codes[0].astype(np.float16))


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerCodes(Codes):
    """Codes that are multiplied with codes: W8A8; see `integers.w8a8`.

    Attributes:
        step: scale of the vectors.
        zero_point: of the vectors, which are codes less it; only 0 was recorded.
    """

    step: float
    zero_point: int

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """Recorded for scales that are powers of two, without bias and zero point."""
        scales = np.append(self.codes[1], self.step)
        known = np.all(np.frexp(scales)[0] == 0.5) and not has_bias and not self.zero_point
        return Grade.RECORDED if known else Grade.INFERRED

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums | None:
        """As `Factors.sums`; None where dequantized vectors overflowed fp16."""
        if not np.isfinite(vectors).all():
            return None
        codes, scale = self.codes
        return w8a8(np.rint(vectors / np.float32(self.step)), codes, self.step, scale, bias)
