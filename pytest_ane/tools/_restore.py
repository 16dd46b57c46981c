"""An artifact's program with some weights as its uncompressed form has them.

Programs differ in the weights that are replaced and share all else. Small shards' weights are held
decoded; those of large ones are decoded from their files, rows at a time, in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.make.distortion import typeless
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.census import (
    ProgramWeight,
    Weight,
    constant_name,
    constants_of,
    find_weights,
    plain_name,
)
from pytest_ane.mlprogram.decompress import decompress, expansion
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.records import MLModel, Operation

_HELD = 512 << 20
"""Bytes of decoded weights, of both packages together, up to which they are held."""


_ROUNDING = 1e-6
"""Share of a weight's sum of squares: rounding to fp16 makes 6e-8 at most, 2^-24."""


@dataclass(frozen=True, eq=False)
class WeightPair:
    """A weight in the artifact and in its uncompressed form.

    Attributes:
        weight: as the artifact stores it.
        operation: yields it.
        stored, exact: its values in float32, as arrays or to be decoded by rows; `exact` is None
            where the uncompressed form has no weight of this name and shape, or the same one.
        tables: the values of its palettes `[..., 2^n, v]`; None for no palettes, or computed ones.
    """

    weight: Weight
    operation: Operation
    stored: Any
    exact: Any
    tables: Any = None

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
            and others whose values are not the same.
        absent: names of compressed ones that have no counterpart.
        values: names of all of these by the program's values that hold them.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
    """

    def __init__(
        self, model: MLModel, original: MLModel | None, arithmetic: Arithmetic = "typed"
    ) -> None:
        self.model, self._arithmetic = model, arithmetic
        pairs = list(_pairs(model, original))
        self.pairs = tuple(pair for pair in pairs if pair.exact is not None)
        self.absent = tuple(p.name for p in pairs if p.weight.stages and p.exact is None)
        names = {*self.absent, *self.names}
        self.values = {pair.operation.name: pair.name for pair in pairs if pair.name in names}
        self._stored: dict[Operation, Any] = {pair.operation: pair.stored for pair in pairs}
        self._skipped = _intermediate(model, self._stored)

    def session(
        self,
        exact: Collection[str] = (),
        *,
        others: Mapping[str, Array] | None = None,
        precision: Precision = "as-typed",
        arithmetic: Arithmetic | None = None,
    ) -> Session:
        """A session of the artifact's program with some of its weights replaced.

        Args:
            exact: names of the weights that are those of the uncompressed form.
            others: further weights by name, in float32.
            precision: as in `Session`.
            arithmetic: in place of the restorer's, which float32 excludes.
        """
        weights = dict(self._stored)
        for pair in self.pairs:
            if pair.name in exact:
                weights[pair.operation] = pair.exact
            if others and pair.name in others:
                weights[pair.operation] = others[pair.name]
        how = arithmetic or (self._arithmetic if precision == "as-typed" else "typed")
        overrides = self._skipped | weights
        return Session(self.model, precision, 0, overrides=overrides, arithmetic=how)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the weights that can be restored."""
        return tuple(pair.name for pair in self.pairs)


def _pairs(model: MLModel, original: MLModel | None) -> Iterator[WeightPair]:
    theirs = {} if original is None else _by_name(original)
    mine = [each for each in find_weights(model) if each.function is model.main]
    counts = Counter(each.weight.name for each in mine)
    hold = 8 * sum(each.weight.elements for each in mine) <= _HELD
    for own in mine:
        weight, other = own.weight, theirs.get(_key(own))
        exact = None
        if original is not None and other is not None and _is_joined(own, other, counts):
            exact = _values(decompress(original, other), hold)
        stored = _values(decompress(model, own), hold)
        if exact is not None and not weight.stages and _agree(stored, exact):
            exact = None
        yield WeightPair(weight, own.operation, stored, exact, _tables(model, own))


def _is_joined(own: ProgramWeight, other: ProgramWeight, counts: Mapping[str, int]) -> bool:
    weight = own.weight
    return counts[weight.name] == 1 and other.weight.shape == weight.shape


def _agree(stored: Any, exact: Any) -> bool:
    """Whether two weights are the same but for rounding to fp16."""
    a, b = np.asarray(stored), np.asarray(exact)
    with np.errstate(all="ignore"):
        return bool(np.square(a - b).sum() <= _ROUNDING * np.square(b).sum())


def _tables(model: MLModel, weight: ProgramWeight) -> Any:
    table = constants_of(weight.operation, weight.producers).get("lut")
    return None if table is None else load(model, table)


def _by_name(model: MLModel) -> dict[str, ProgramWeight]:
    """Weights by name; none of those of which there are several of one name."""
    named: dict[str, list[ProgramWeight]] = {}
    for weight in find_weights(model):
        if weight.function is model.main:
            named.setdefault(_key(weight), []).append(weight)
    return {name: several[0] for name, several in named.items() if len(several) == 1}


def _key(weight: ProgramWeight) -> str:
    """A weight's own name without what conversion to fp16 adds to it."""
    return typeless(plain_name(constant_name(weight.operation)))


def _values(weight: Any, hold: bool) -> Any:
    if hold:
        return np.asarray(weight, np.float32)
    return weight if isinstance(weight, StreamedWeight) else _streamed(weight)


def _streamed(weight: Array) -> Any:
    """A weight that had to be decoded as a whole, kept in half the bytes where that loses none."""
    with np.errstate(over="ignore"):
        half = weight.astype(np.float16)
    if not weight.shape or not np.array_equal(half, weight, equal_nan=True):
        return weight

    def rows(start: int, stop: int, out: Array) -> Array:
        np.copyto(out, half[start:stop])
        return out

    return StreamedWeight(half.shape, np.float32, rows)


def _intermediate(model: MLModel, weights: Mapping[Operation, Any]) -> dict[Operation, Any]:
    """The operations that only serve to expand weights: nobody needs what they yield."""
    mine = [each for each in find_weights(model) if each.operation in weights]
    ops = {op for each in mine for op in expansion(each, model.path) if op not in weights}
    return {op: None for op in ops if op.op.startswith("constexpr_")}
