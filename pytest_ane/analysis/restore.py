"""An artifact's program with the weights of its uncompressed form in place of some.

Programs differ in the weights that are replaced and share all else. Small shards' weights are held
decoded; those of large ones are decoded from their files, rows at a time, in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.build.census import Found, Weight, find_weights
from pytest_ane.build.decode import below, decoded
from pytest_ane.build.stages import constants_of
from pytest_ane.mil.blob import load
from pytest_ane.mil.records import MLModel, Operation
from pytest_ane.reference import Session
from pytest_ane.reference.dtypes import Precision
from pytest_ane.reference.weights import StreamedWeight

_HELD = 512 << 20
"""Bytes of decoded weights, of both packages together, up to which they are held."""


_ROUNDING = 1e-6
"""Share of a weight's sum of squares: rounding to fp16 makes 6e-8 at most, 2^-24."""


@dataclass(frozen=True, eq=False)
class Pair:
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

    Attributes:
        pairs: the weights that differ from their counterparts, in program order: compressed ones,
            and others whose values are not the same.
        absent: names of compressed ones that have no counterpart.
        values: names of all of these by the program's values that hold them.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
    """

    def __init__(self, model: MLModel, original: MLModel | None) -> None:
        self.model = model
        found = list(_pairs(model, original))
        self.pairs = tuple(pair for pair in found if pair.exact is not None)
        self.absent = tuple(p.name for p in found if p.weight.stages and p.exact is None)
        names = {*self.absent, *self.names}
        self.values = {pair.operation.name: pair.name for pair in found if pair.name in names}
        self._stored: dict[Operation, Any] = {pair.operation: pair.stored for pair in found}
        self._skipped = _intermediate(model, self._stored)

    def session(
        self,
        exact: Collection[str] = (),
        *,
        others: Mapping[str, npt.NDArray[Any]] | None = None,
        precision: Precision = "as-typed",
    ) -> Session:
        """The artifact's program, prepared.

        Args:
            exact: names of the weights that are those of the uncompressed form.
            others: further weights by name, in float32.
            precision: as in `Session`.
        """
        given = dict(self._stored)
        for pair in self.pairs:
            if pair.name in exact:
                given[pair.operation] = pair.exact
            if others and pair.name in others:
                given[pair.operation] = others[pair.name]
        return Session(self.model, precision, 0, given=self._skipped | given)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the weights that can be restored."""
        return tuple(pair.name for pair in self.pairs)


def restored(model: MLModel, original: MLModel, names: Collection[str]) -> CpuRunner:
    """An artifact with some of its weights as its uncompressed form has them.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
    """
    return CpuRunner(Restorer(model, original).session(names))


def _pairs(model: MLModel, original: MLModel | None) -> Iterator[Pair]:
    theirs = {} if original is None else _by_name(original)
    mine = [found for found in find_weights(model) if found.function is model.main]
    counts = Counter(found.weight.name for found in mine)
    hold = 8 * sum(found.weight.elements for found in mine) <= _HELD
    for found in mine:
        weight, other = found.weight, theirs.get(_key(found.weight.name))
        exact = None
        if original is not None and other is not None and _is_joined(found, other, counts):
            exact = _values(decoded(original, other), hold)
        stored = _values(decoded(model, found), hold)
        if exact is not None and not weight.stages and _agree(stored, exact):
            exact = None
        yield Pair(weight, found.operation, stored, exact, _tables(model, found))


def _is_joined(found: Found, other: Found, counts: Mapping[str, int]) -> bool:
    weight = found.weight
    return counts[weight.name] == 1 and other.weight.shape == weight.shape


def _agree(stored: Any, exact: Any) -> bool:
    """Whether two weights are the same but for rounding to fp16."""
    a, b = np.asarray(stored), np.asarray(exact)
    with np.errstate(all="ignore"):
        return bool(np.square(a - b).sum() <= _ROUNDING * np.square(b).sum())


def _tables(model: MLModel, found: Found) -> Any:
    table = constants_of(found.operation, found.producers).get("lut")
    return None if table is None else load(model, table)


def _by_name(model: MLModel) -> dict[str, Found]:
    """Weights by name; none of those of which there are several of one name."""
    named: dict[str, list[Found]] = {}
    for found in find_weights(model):
        if found.function is model.main:
            named.setdefault(_key(found.weight.name), []).append(found)
    return {name: several[0] for name, several in named.items() if len(several) == 1}


def _key(name: str) -> str:
    """A weight's name without what conversion to fp16 adds to it."""
    return name.removesuffix("_to_fp16")


def _values(weight: Any, hold: bool) -> Any:
    if hold:
        return np.asarray(weight, np.float32)
    return weight if isinstance(weight, StreamedWeight) else _streamed(weight)


def _streamed(weight: npt.NDArray[Any]) -> Any:
    """A weight that had to be decoded as a whole, kept in half the bytes where that loses none."""
    with np.errstate(over="ignore"):
        half = weight.astype(np.float16)
    if not weight.shape or not np.array_equal(half, weight, equal_nan=True):
        return weight

    def rows(start: int, stop: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        np.copyto(out, half[start:stop])
        return out

    return StreamedWeight(half.shape, np.float32, rows)


def _intermediate(model: MLModel, weights: Mapping[Operation, Any]) -> dict[Operation, Any]:
    """The operations that only serve to expand weights: nobody needs what they yield."""
    mine = [found for found in find_weights(model) if found.operation in weights]
    ops = {op for found in mine for op in below(found, model.path) if op not in weights}
    return {op: None for op in ops if op.op.startswith("constexpr_")}
