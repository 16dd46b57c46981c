"""Two programs of one function: which weights belong together, and one with weights of the other.

Weights are paired by the operation that takes them: its kind, the parameter, the shape, and the
order among those that are alike. Names decide where that leaves it open, for tools that compress
give weights other names and leave operations as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.blob import packed
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    Block,
    Function,
    MLModel,
    Operation,
    Ref,
    Value,
)
from pytest_ane.mlprogram.weights import (
    ProgramWeight,
    Weight,
    constant_name,
    decompress,
    expansion,
    find_weights,
    plain_name,
)

Pair: TypeAlias = tuple[ProgramWeight | None, ProgramWeight | None]
"""A weight and its counterpart in the other program; None where one of the two has none."""
_MOVES = ("cast", "expand_dims", "reshape", "squeeze", "transpose")
"""Operations that a weight may pass on its way to the one that takes it."""
_HELD = 512 << 20
"""Bytes of decoded weights, of both packages together, up to which they are held."""
_ROUNDING = 1e-6
"""Share of a weight's sum of squares: rounding to fp16 makes 6e-8 at most, 2^-24."""


def pair_weights(model: MLModel, other: MLModel) -> list[Pair]:
    """Every weight of both programs, with its counterpart where it has one: see `values_as`.

    Functions are paired by name; one that the other program lacks is held against its main one.
    """
    theirs, pairs = _by_function(other), list[Pair]()
    for name, mine in _by_function(model).items():
        others = theirs.get(name) or theirs.get(other.main.name, [])
        pairs += [(a.weight, b.weight if b else None) for a, b in _paired(mine, others)]
    met = {b.operation for _, b in pairs if b is not None}
    left = (each.weight for every in theirs.values() for each in every)
    return [*pairs, *((None, weight) for weight in left if weight.operation not in met)]


def values_as(stored: Any, model: MLModel, weight: ProgramWeight) -> Any:
    """Values of a counterpart of `stored` in its shape, transposed where that is nearer.

    A linear layer, a 1x1 convolution and a product take one weight in three shapes.
    """
    exact = decompress(model, weight)
    if tuple(exact.shape) == tuple(stored.shape):
        return exact
    a, b = (np.asarray(each, np.float32) for each in (stored, exact))
    turned = (each.reshape(a.shape) for each in (b, b.squeeze().T))
    return max(turned, key=lambda each: float(np.vdot(a, each)))


def weight_name(weight: ProgramWeight) -> str:
    """A weight's own name, as a program in float32 has it before compression."""
    return typeless(plain_name(constant_name(weight.operation)))


def typeless(name: str) -> str:
    """A constant's name as a program in float32 has it; one in fp16 appends a suffix."""
    return name.removesuffix("_to_fp16")


@dataclass(frozen=True, eq=False)
class _Taken:
    """A weight, what takes it first, as kind, parameter and shape, and its name."""

    weight: ProgramWeight
    place: tuple[Any, ...]
    name: str


def _extents(each: _Taken) -> tuple[int, ...]:
    extents = tuple(sorted(size for size in each.place[2] if size > 1))
    return extents if len(extents) == 2 else each.place[2]


_PLACES: tuple[Callable[[_Taken], tuple[Any, ...]], ...]
_PLACES = attrgetter("place"), lambda each: each.place[2], _extents
"""By what weights are alike, the strictest first."""


def _by_function(model: MLModel) -> dict[str, list[_Taken]]:
    """Weights of each function in the order in which operations take them."""
    found = grouped((each.function.name, each) for each in find_weights(model))
    functions = model.program.functions
    return {name: [*_taken(function, found.get(name, ()))] for name, function in functions.items()}


def _taken(function: Function, weights: Iterable[ProgramWeight]) -> Iterator[_Taken]:
    left = {each.operation.outputs[0].name: each for each in weights}
    passed = {name: name for name in left}
    for op in function.walk():
        moves = op.op in _MOVES and next(iter(op.inputs.get("x", ())), None)
        if isinstance(moves, Ref) and moves.name in passed:
            passed[op.name] = passed[moves.name]
            continue
        for parameter, arguments in op.inputs.items():
            for argument in arguments:
                name = passed.get(argument.name) if isinstance(argument, Ref) else None
                if name in left and (weight := left.pop(name)):
                    place = (op.op, parameter, weight.weight.shape)
                    yield _Taken(weight, place, weight_name(weight))
    for weight in left.values():  # A result, or what only moves before it is one.
        yield _Taken(weight, ("", "", weight.weight.shape), weight_name(weight))


def _paired(mine: Sequence[_Taken], theirs: Sequence[_Taken]) -> list[tuple[_Taken, _Taken | None]]:
    """Each of `mine` with its counterpart: by place, the rest by name and shape, then extents."""
    found: dict[int, _Taken] = {}
    for place in _PLACES:
        met = {id(each) for each in found.values()}
        for at in dict.fromkeys(map(place, mine)):
            a = [x for x in mine if place(x) == at and id(x) not in found]
            b = [x for x in theirs if place(x) == at and id(x) not in met]
            found |= {id(x): y for x, y in _alike(a, b, ordered=place is _PLACES[0])}
    return [(each, found.get(id(each))) for each in mine]


def _alike(
    a: Sequence[_Taken], b: Sequence[_Taken], *, ordered: bool
) -> Iterator[tuple[_Taken, _Taken]]:
    """Pairs of those that are taken alike: in order where there are as many.

    Names decide where there are not, and where they say that the order is another one.
    """
    ours, theirs = ([each.name for each in side] for side in (a, b))
    at = [
        (i, theirs.index(name))
        for i, name in enumerate(ours)
        if ours.count(name) == theirs.count(name) == 1
    ]
    if ordered and len(a) == len(b):
        if all(x[1] < y[1] for x, y in pairwise(at)):
            at = [(i, i) for i in range(len(a))]
        else:
            rest = (sorted({*range(len(a))} - {pair[side] for pair in at}) for side in (0, 1))
            at += zip(*rest, strict=True)
    return ((a[i], b[j]) for i, j in at)


def same_form(model: MLModel, other: MLModel) -> bool:
    """Whether two programs are the same, operation by operation, but for names and for weights.

    Weights that are counterparts are taken for the same, compressed or not; inputs by their order.
    """
    marks: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for number, pair in enumerate(pair_weights(model, other)):
        for mark, each in zip(marks, pair, strict=True):
            if each is not None:
                mark[each.operation.outputs[0].name] = ("weight", number)
    return _form(model, marks[0]) == _form(other, marks[1])


def program_digest(model: MLModel) -> str:
    """SHA-256 of what the chosen function computes, weights included, whatever names it has inside.

    Descriptions and metadata have no part in it, nor has where weights lie in the package.
    """
    declared = [*model.inputs, *model.outputs, *model.states]
    return hashlib.sha256(repr((declared, _form(model, {}))).encode()).hexdigest()


def _form(model: MLModel, marks: Mapping[str, Any]) -> list[Any]:
    """The chosen function with numbers in place of names, and constants' digests."""
    known, computed = dict(marks), count()
    producers = {out.name: op for op in model.main.walk() for out in op.outputs}

    def value(argument: Argument) -> Any:
        if isinstance(argument, Value):
            return _constant(model, argument)
        if argument.name not in known and (op := producers.get(argument.name)) is not None:
            known[argument.name] = (
                _constant(model, op.attributes["val"])
                if op.op == "const"
                else (line(op), [out.name for out in op.outputs].index(argument.name))
            )
        return known.get(argument.name, argument.name)

    def line(op: Operation) -> Any:
        given: dict[str, Any] = {key: [*map(value, each)] for key, each in op.inputs.items()}
        given |= {k: _constant(model, v) for k, v in op.attributes.items() if k != "name"}
        types = [str(out.type) for out in op.outputs]
        return op.op, sorted(given.items(), key=itemgetter(0)), types, [*map(body, op.blocks)]

    def body(block: Block) -> Any:
        lines = []
        known.update({named.name: next(computed) for named in block.inputs})
        for op in block.operations:
            if op.op != "const" and not op.op.startswith("constexpr_"):
                lines.append(line(op))
                known.update({out.name: next(computed) for out in op.outputs})
        return lines, [value(Ref(name)) for name in block.outputs]

    known.update({named.name: ("input", i) for i, named in enumerate(model.main.inputs)})
    return [model.main.opset, body(model.main.block)]


def _constant(model: MLModel, value: Value) -> tuple[str, str]:
    if not isinstance(value.data, Blob | np.ndarray):
        return str(value.type), repr(value.data)
    return str(value.type), hashlib.sha256(packed(model, value).tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class WeightPair:
    """A weight in the artifact, as `operation` yields it, and in its uncompressed form.

    Values are in float32, as arrays or to be decoded by rows; `exact` is None where the
    uncompressed form has no counterpart of it, or the same values.
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

    Programs differ in the weights that are replaced and share all else. Small shards' weights are
    held decoded; those of large ones are decoded from their files, rows at a time, in every run.

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
        pairs = list(_weight_pairs(model, original))
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


def _weight_pairs(model: MLModel, original: MLModel | None) -> Iterator[WeightPair]:
    found = [(each, None) for each in find_weights(model)]
    pairs: Sequence[Pair] = found if original is None else pair_weights(model, original)
    own = [(a, b) for a, b in pairs if a is not None and a.function is model.main]
    hold = 8 * sum(a.weight.elements for a, _ in own) <= _HELD

    def held(decoded: Any) -> Any:
        return np.asarray(decoded, np.float32) if hold else decoded

    for mine, theirs in own:
        stored, exact = held(decompress(model, mine)), None
        if theirs is not None and original is not None:
            exact = held(values_as(stored, original, theirs))
            if not mine.weight.stages and _agree(stored, exact):
                exact = None
        yield WeightPair(mine.weight, mine.operation, stored, exact)


def _agree(stored: Any, exact: Any) -> bool:
    a, b = np.asarray(stored), np.asarray(exact)
    same = same_values(a, b)
    with np.errstate(all="ignore"):
        lost = np.square(np.where(same, 0, a - b)).sum()
        return bool(lost <= _ROUNDING * np.square(np.where(same & ~np.isfinite(b), 0, b)).sum())


def same_values(a: Array, b: Array) -> Any:
    """Where two constants are equal: minus infinity, and what fp16 makes of less, is one number."""
    return (a == b) | ((a <= -fp16.MAX) & (b <= -fp16.MAX))
