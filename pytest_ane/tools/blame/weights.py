"""A shard's weights: exact ones in place of compressed ones, and remedies for those that do harm.

Programs differ in the weights that are replaced and share all else. Small shards' weights are held
decoded; those of large ones are decoded from their files, rows at a time, in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_ane.make.compress import stored_bytes
from pytest_ane.make.distortion import typeless
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.records import MLModel, Operation
from pytest_ane.mlprogram.weights import (
    ProgramWeight,
    Weight,
    constant_name,
    decompress,
    expansion,
    find_weights,
    plain_name,
)

_HELD = 512 << 20
"""Bytes of decoded weights, of both packages together, up to which they are held."""
_ROUNDING = 1e-6
"""Share of a weight's sum of squares: rounding to fp16 makes 6e-8 at most, 2^-24."""
_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of an index that Core ML knows."""
_GROUPS = (32, 16, 8)
_LEFT = 0.1
"""Share of the squared error that restoring takes away and that a remedy may leave."""


@dataclass(frozen=True, eq=False)
class WeightPair:
    """A weight in the artifact, as `operation` yields it, and in its uncompressed form.

    Values are in float32, as arrays or to be decoded by rows; `exact` is None where the
    uncompressed form has no weight of this name and shape, or the same one.
    """

    weight: Weight
    operation: Operation
    stored: Any
    exact: Any

    @property
    def name(self) -> str:
        """The weight's name before compression."""
        return self.weight.name


class Restorer:
    """Sessions of one artifact in which chosen weights are exact.

    Args:
        model: the artifact.
        original: the same program uncompressed; None where there is none.
        arithmetic: of the sessions that compute as typed, not in float32.

    Attributes:
        pairs: the weights that differ from their counterparts, in program order: compressed ones,
            and others whose values are not the same; `names` are theirs.
        absent: names of compressed ones that have no counterpart.
        values: names of all of these by the program's values that hold them.
    """

    def __init__(
        self, model: MLModel, original: MLModel | None, arithmetic: Arithmetic = "typed"
    ) -> None:
        self.model, self._arithmetic = model, arithmetic
        pairs = list(_pairs(model, original))
        self.pairs = tuple(pair for pair in pairs if pair.exact is not None)
        self.names = tuple(pair.name for pair in self.pairs)
        self.absent = tuple(p.name for p in pairs if p.weight.stages and p.exact is None)
        named = {*self.absent, *self.names}
        self.values = {pair.operation.name: pair.name for pair in pairs if pair.name in named}
        stored = {pair.operation: pair.stored for pair in pairs}
        # Nobody needs what operations yield that only serve to expand weights.
        mine = [each for each in find_weights(model) if each.operation in stored]
        serving = {op for each in mine for op in expansion(each, model.path)} - {*stored}
        idle = {op: None for op in serving if op.op.startswith("constexpr_")}
        self._stored: dict[Operation, Any] = idle | stored

    def session(
        self,
        exact: Collection[str] = (),
        *,
        others: Mapping[str, Array] | None = None,
        precision: Precision = "as-typed",
        arithmetic: Arithmetic | None = None,
    ) -> Session:
        """A session of the artifact's program with some of its weights replaced.

        Those named `exact` are of the uncompressed form, `others` given in float32. `arithmetic` is
        in place of the restorer's, which float32 excludes.
        """
        overrides = dict(self._stored)
        for pair in self.pairs:
            values = pair.exact if pair.name in exact else pair.stored
            overrides[pair.operation] = (others or {}).get(pair.name, values)
        how = arithmetic or (self._arithmetic if precision == "as-typed" else "typed")
        return Session(self.model, precision, 0, overrides=overrides, arithmetic=how)


def _pairs(model: MLModel, original: MLModel | None) -> Iterator[WeightPair]:
    mine, theirs = _by_name(model), {} if original is None else _by_name(original)
    hold = 8 * sum(each.weight.elements for same in mine.values() for each in same) <= _HELD

    def values(model: MLModel, weight: ProgramWeight) -> Any:
        decoded = decompress(model, weight)
        return np.asarray(decoded, np.float32) if hold else decoded

    for own in (each for each in find_weights(model) if each.function is model.main):
        weight, others = own.weight, theirs.get(_key(own), [])
        stored, exact = values(model, own), None
        # Of several of one name nobody can say which is which.
        if original is not None and len(mine[_key(own)]) == len(others) == 1:
            (other,) = others
            if other.weight.shape == weight.shape:
                exact = values(original, other)
                if not weight.stages and _agree(stored, exact):
                    exact = None
        yield WeightPair(weight, own.operation, stored, exact)


def _by_name(model: MLModel) -> dict[str, list[ProgramWeight]]:
    named: dict[str, list[ProgramWeight]] = {}
    for each in find_weights(model):
        if each.function is model.main:
            named.setdefault(_key(each), []).append(each)
    return named


def _key(weight: ProgramWeight) -> str:
    """A weight's own name without what conversion to fp16 adds to it."""
    return typeless(plain_name(constant_name(weight.operation)))


def _agree(stored: Any, exact: Any) -> bool:
    """Whether two weights are the same but for rounding to fp16."""
    a, b = np.asarray(stored), np.asarray(exact)
    with np.errstate(all="ignore"):
        return bool(np.square(a - b).sum() <= _ROUNDING * np.square(b).sum())


# Remedies: more bytes, the cheapest first.


@dataclass(frozen=True)
class Remedy:
    """Suggested compression for a weight, as `compression.overrides` would name it.

    `error` is the shard's with all others as they are, `more` the bytes beyond those of today.
    """

    settings: Settings
    error: float
    more: int


def find_remedy(
    weight: Weight,
    candidates: Sequence[tuple[int, Settings]],
    *,
    now: float,
    restored: float,
    error: Callable[[Settings], float],
) -> Remedy:
    """The first candidate that leaves a tenth of the squared error that restoring takes away.

    Of an error that is not finite, one that leaves a tenth more than the exact weight. Candidates
    are bytes on disk and settings, of which the last leave it uncompressed; `now` is the shard's
    error as it is, `restored` that with this weight exact, `error` measures it with others.
    """
    gone = now**2 - restored**2 if np.isfinite(now) else restored**2
    limit = restored**2 + _LEFT * max(gone, 0.0)
    *finer, (dense, uncompressed) = candidates
    for size, settings in finer:
        left = error(settings)
        if left * left <= limit:
            return Remedy(settings, left, size - weight.compressed_bytes)
    return Remedy(uncompressed, restored, dense - weight.compressed_bytes)


def candidates(weight: Weight, axis: int | None) -> list[tuple[int, Settings]]:
    """Bytes, and settings that may keep more than today's, by bytes; the last keeps all.

    Palettes by k-means of today's size come first: today's may have even steps. `axis` is that of
    the output channels; None where the weight's uses do not agree.
    """
    finer: list[Settings] = [*_palettes(weight, axis)]
    stage = weight.stages[-1]
    # Integers of 8 bits, each channel with a scale, for what has fewer of either.
    if stage.is_quantization and len(weight.shape) > 1 and (stage.nbits < 8 or stage.count == 1):
        finer.append(Linear(dtype="int8", granularity="per_channel"))
    sized = [(stored_bytes(weight.shape, each, axis or 0), each) for each in finer]
    dense = stored_bytes(weight.shape, Uncompressed())
    worth = [(size, each) for size, each in sized if size < dense]
    return [*sorted(worth, key=itemgetter(0)), (dense, Uncompressed())]


def _palettes(weight: Weight, axis: int | None) -> Iterator[Palettize]:
    if len(weight.shape) < 2:
        return
    rows = None if axis is None else weight.shape[axis]
    stage = weight.stages[-1]
    scalar = stage.is_palette and stage.vector == 1 and len(weight.stages) == 1
    bits, tables = (stage.nbits, stage.count) if scalar else (3, 1)
    size = None if tables == 1 or rows is None else rows // tables
    finer = [s for s in _GROUPS if rows and rows % s == 0 and (size is None or s < size)]
    if scalar:
        yield from (_palette(bits, s) for s in (size, *finer))
    for more in [b for b in _BITS if b > bits]:
        yield from (_palette(more, s) for s in (size, *finer[:1]))


def _palette(bits: Any, size: int | None) -> Palettize:
    if size is None:
        return Palettize(mode="kmeans", nbits=bits, granularity="per_tensor")
    return Palettize(mode="kmeans", nbits=bits, group_size=size)
