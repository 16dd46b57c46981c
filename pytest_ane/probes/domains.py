"""What each input of a package is drawn from: as the manifest says, or as the program implies.

An input is followed through operations that only move its values to those that take them. Indices
of a gather are below the extent of its table, and what a logarithm takes is positive. Positions are
followed through integer arithmetic to the slots of states that they begin at, index or are compared
with. What nothing implies is drawn as the probe's kind says, integers as 0 or 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from pytest_ane.make.palettize.choose import Uses
from pytest_ane.manifest import Input
from pytest_ane.manifest.ids import nearest
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import counterpart, read_any, read_functions
from pytest_ane.mlprogram.records import (
    NUMBERS,
    Argument,
    DType,
    Feature,
    Function,
    Operation,
    Pipeline,
    Ref,
    StateType,
    TensorType,
    Value,
    ValueType,
)
from pytest_ane.probes.cases import Calls
from pytest_ane.probes.inputs import (
    COVERED,
    POSITIONAL,
    Call,
    Domain,
    Shape,
    draw,
    kind_axes,
    position_axis,
)
from pytest_ane.probes.seeded import KINDS

FLOATS = (DType.FP16, DType.FP32, DType.FP64)


def domains(
    features: Sequence[Feature],
    tables: Mapping[str, Input],
    artifact: Path,
    reference: Path | None = None,
    function: str | None = None,
) -> dict[str, Domain]:
    """What each input is drawn from, by name: the manifest's tables first, then the programs.

    What a reference implies goes before the artifact. `ProgramError` where the manifest names an
    input that no function has, or a package cannot be read.
    """
    names = {feature.name for feature in features}
    if function is not None and not names.issuperset(tables):
        others = (read_any(artifact, weights=False), *read_functions(artifact))
        names |= {feature.name for other in others for feature in other.inputs}
    check_names(artifact, tables, sorted(names))
    implied = derived(artifact, function)
    if reference is not None:
        implied |= derived(reference, counterpart(reference, function))
    return {f.name: _domain(f, tables.get(f.name), implied.get(f.name)) for f in features}


def check_names(subject: Path | str, tables: Iterable[str], names: Sequence[str]) -> None:
    """Raise `ProgramError` where an input that the manifest names is none of a package or shard."""
    for name in tables:
        if name not in names:
            why = f"which the manifest names; {nearest(name, names)}"
            raise ProgramError(f"{subject}: has no input {name!r}, {why}.")


def from_manifest(spec: Input) -> Domain:
    """What an input is drawn from because the manifest says so."""
    return Domain("manifest", spec, f"{spec.kind}: as the manifest says")


def _domain(feature: Feature, table: Input | None, implied: Domain | None) -> Domain:
    if table is not None:
        return from_manifest(table)
    if implied is not None and feature.kind == "tensor":
        return implied
    if may_be_left_out(feature):
        sentence = "uniform: from 0 to 1, in every second probe; it is optional"
        return Domain("default", Input(kind="uniform"), sentence)
    if feature.kind == "image":
        return Domain("default", Input(kind="image"), "image: gradients and noise from 0 to 255")
    if feature.dtype in FLOATS:
        return Domain("default", None, "floats of the probe's kind: its program implies nothing")
    return Domain("default", Input(kind="ids", count=2), "ids: 0 and 1, for nothing implies more")


def may_be_left_out(feature: Feature) -> bool:
    """Whether an input is an optional number, such as a threshold of a suppression."""
    return feature.optional and feature.kind in NUMBERS


def derived(package: Path, function: str | None = None) -> dict[str, Domain]:
    """What a package's programs, or one function, imply about their inputs, by input."""
    model = read_any(package, weights=False, function=function)
    programs = [*model.programs.values()] if isinstance(model, Pipeline) else [model]
    return {name: d for part in reversed(programs) for name, d in implied(part.main).items()}


def implied(function: Function) -> dict[str, Domain]:
    """What a function implies about its inputs, by input: a position, else the fewest ids."""
    graph = _Graph(function)
    result: dict[str, Domain] = {}
    for named in function.inputs:
        reasons = [d for use in graph.uses_of(named.name) if (d := graph.domain(*use)) is not None]
        if place := graph.position(named.name):
            sentence = f"positions: {place.operation.op} `{place.operation.name}` {place.verb}"
            result[named.name] = Domain("derived", Input(kind="positions"), sentence)
        elif reasons:
            result[named.name] = min(reasons, key=lambda d: d.count or math.inf)
    return result


@dataclass(frozen=True)
class Slots:
    """Where the positions of a stateful function lead.

    Attributes:
        states: by name, how many slots of a state are counted by positions.
        end: what no position may reach, or a slice would leave its tensor; None where positions go
            round, or nothing is known.
        step: positions that a call writes; None where the program leaves it open.
    """

    states: Mapping[str, int] = field(default_factory=dict)
    end: int | None = None
    step: int | None = None

    @property
    def count(self) -> int:
        """Slots of the longest state; 0 where positions lead nowhere."""
        return max(self.states.values(), default=0)


def slots(package: Path, known: Mapping[str, Domain], function: str | None = None) -> Slots:
    """Where the positions among a package's inputs lead; of a pipeline nowhere."""
    model = read_any(package, weights=False, function=function)
    if isinstance(model, Pipeline) or not model.states:
        return Slots()
    graph = _Graph(model.main)
    names = [f.name for f in model.inputs if known[f.name].kind == "positions"]
    places = [place for name in names for place in graph.places(name) if place.extent]
    extents = {(place.axis, place.extent) for place in places}
    for feature in model.inputs:
        spec = known[feature.name].input
        if spec is not None and spec.kind in ("one-hot", "causal-mask") and feature.shape:
            axes = kind_axes(feature.shape, spec.axis, spec.position_axis, flexible_axis(feature))
            extents.add((None, feature.shape[axes.own]))
    counted = {}
    for state in model.states:
        along = [
            n for axis, n in extents if axis is not None and state.shape[axis : axis + 1] == (n,)
        ]
        if found := along or [n for axis, n in extents if axis is None and n in state.shape]:
            counted[state.name] = max(found)
    # A comparison beyond the last slot is none that a slice would be: there is no such key.
    round_ = {place.operation.name for place in places if place.bounded}
    limits = [p.extent for p in places if p.verb != _COMPARES and p.operation.name not in round_]
    if not limits and not round_:
        limits = [place.extent for place in places]
    steps = {place.step for place in places if place.operation.op == "slice_update"}
    return Slots(counted, min(limits, default=None), steps.pop() if len(steps) == 1 else None)


_MOVES = {
    "cast": "x", "expand_dims": "x", "flatten2d": "x", "identity": "x", "reshape": "x",
    "slice_by_index": "x", "slice_by_size": "x", "split": "x", "squeeze": "x", "tile": "x",
    "transpose": "x", "concat": "values", "stack": "values",
}  # fmt: skip
"""Operations whose results are values of this parameter."""
_INDICES = {
    "gather": "x", "gather_along_axis": "x", "scatter": "data", "scatter_along_axis": "data",
}  # fmt: skip
"""Operations whose `indices` count along one axis of this parameter."""
_SLICES = ("slice_by_index", "slice_by_size", "slice_update")
_STEPS = {
    "add": ("x", "y"), "floor_div": ("x",), "maximum": ("x", "y"), "minimum": ("x", "y"),
    "matmul": ("x", "y"), "mod": ("x",), "mul": ("x", "y"), "sub": ("x",),
}  # fmt: skip
"""Operations after which a position is one still, and their parameters."""
_COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
_BEGINS, _TURNS = "begins there", "takes it for an angle"
_INDEXES, _COMPARES = "has as many rows as a state", "has a state's slots beside it"
_POSITIVE = {
    "inverse": "x", "log": "x", "real_div": "y", "rsqrt": "x", "sqrt": "x",
}  # fmt: skip
"""Operations whose parameter is drawn positive: other values give NaN or infinity."""
_WITHIN = {"acos": 1.0, "asin": 1.0, "atanh": 0.99}
"""Operations that are defined between minus and plus this value."""
_Use: TypeAlias = "tuple[Operation, str, bool]"
"""An operation, its parameter, and whether the values are still the input's own."""


class _Place(NamedTuple):
    """An operation that a position leads to: what it does, along which axis of how many places.

    `extent` is 0 where nobody knows; `step` are the positions of one call; `bounded` ones went
    through a `mod` or `minimum`.
    """

    operation: Operation
    verb: str
    axis: int | None
    extent: int
    step: int | None = None
    bounded: bool = False


class _Graph:
    def __init__(self, function: Function) -> None:
        self._states = [
            n.type.wrapped.shape for n in function.inputs if isinstance(n.type, StateType)
        ]
        self._types: dict[str, ValueType] = {n.name: n.type for n in function.inputs}
        for operation in function.walk():
            self._types |= {output.name: output.type for output in operation.outputs}
        self._uses = Uses(function)

    def uses_of(self, name: str) -> Iterator[_Use]:
        """The operations that take an input's values, moved or scaled by positive constants."""
        waiting, visited = [(name, True)], {(name, True)}
        while waiting:
            value, own = waiting.pop(0)
            for operation, parameter in self._uses.ops.get(value, ()):
                yield operation, parameter, own
                # `select` as a negative index becomes one from the end.
                moves = ("a", "b") if operation.op == "select" else (_MOVES.get(operation.op),)
                moved = parameter in moves
                if moved or self._scales(operation, parameter):
                    after = own and moved
                    following = [(output.name, after) for output in operation.outputs]
                    waiting += [step for step in following if step not in visited]
                    visited.update(following)

    def position(self, name: str) -> _Place | None:
        """What shows that an input is a position; None for what is none.

        A row that is taken of a table as long as a state is an angle where it is multiplied with
        something; else it may be a token's.
        """
        places = [*self.places(name)]
        slices = [place for place in places if place.verb == _BEGINS]
        lengths = {size for shape in self._states for size in shape if size != 1}
        for place in slices or places:
            if place.verb in (_BEGINS, _TURNS) or (
                place.extent in lengths
                and (place.verb == _COMPARES or self._is_angle(place.operation))
            ):
                return place
        return None

    def _is_angle(self, operation: Operation) -> bool:
        if not operation.op.startswith("gather"):
            return True
        uses = [*self.uses_of(operation.name)]
        last = [use for use, parameter, _ in uses if parameter != _MOVES.get(use.op)]
        return bool(last) and all(use.op in ("mul", "cos", "sin") for use in last)

    def places(self, name: str) -> Iterator[_Place]:
        """The operations that a position of a stateful function leads to."""
        first = (name, None, "")
        waiting: list[tuple[str, int | None, str]] = [first] if self._states else []
        visited = {*waiting}
        whole = self._types[name]
        integer = isinstance(whole, TensorType) and whole.dtype not in FLOATS
        while waiting:
            value, axis, how = waiting.pop(0)
            for op, parameter in self._uses.ops.get(value, ()):
                if (place := self._place(op, parameter, axis, how == "bounded")) and (
                    integer or place.verb == _BEGINS
                ):
                    yield place
                # coremltools 9.0 writes `x % n` as `x - x // n * n`.
                rest = how.startswith("by") and (op.op, parameter) == ("sub", "y")
                if rest or parameter in (_MOVES.get(op.op), *_STEPS.get(op.op, ())):
                    at = self._within(op, value) if op.op == "concat" else axis
                    by = f"by {self._array(op, 'y' if parameter == 'x' else 'x')}"
                    after = by if op.op == "floor_div" and not how else how
                    after = "" if op.op == "mul" and how.startswith("by") and how != by else after
                    after = "bounded" if rest or op.op in ("minimum", "mod") else after
                    following = {(output.name, at, after) for output in op.outputs} - visited
                    waiting += following
                    visited |= following

    def _within(self, concat: Operation, value: str) -> int:
        at = 0
        for argument in concat.inputs["values"]:
            if isinstance(argument, Ref) and argument.name == value:
                break
            at += (self._shape_of(argument) or (1,))[0] or 1
        return at

    def _place(
        self, operation: Operation, parameter: str, axis: int | None, bounded: bool
    ) -> _Place | None:
        op, step, verb = operation.op, None, _BEGINS
        if parameter == "begin" and op in _SLICES:
            shape = self._shape(operation, "x")
            part = self._shape(operation, "update")
            if op != "slice_update":
                kind = operation.outputs[0].type
                part = kind.shape if isinstance(kind, TensorType) else ()
            if axis is None and len(part) == len(shape):
                others = [i for i, n in enumerate(shape) if part[i] != n]
                axis = others[0] if len(others) == 1 else None
            extent = shape[axis] if axis is not None and axis < len(shape) else None
            step = part[axis] if axis is not None and axis < len(part) else None
        elif parameter == "indices" and (op in _INDICES or op in ("gather_nd", "scatter_nd")):
            table, along = _INDICES.get(op, "data" if op == "scatter_nd" else "x"), 0
            if (given := self._array(operation, "axis")) is not None:
                along = int(given)
            shape, verb = self._shape(operation, table), _INDEXES
            extent = shape[along] if -len(shape) <= along < len(shape) else None
            axis = along % max(1, len(shape)) if op.startswith("scatter") else None
        elif op in _COMPARISONS:
            sizes = self._shape(operation, "y" if parameter == "x" else "x")
            extent, verb, axis = max((n or 0 for n in sizes), default=0), _COMPARES, None
        elif op in ("cos", "sin"):
            extent, verb, axis = 0, _TURNS, None
        else:
            return None
        return _Place(operation, verb, axis, extent or 0, step, bounded)

    def _scales(self, operation: Operation, parameter: str) -> bool:
        """Whether positive values stay positive: a constant is added, or multiplies them."""
        other = {"x": "y", "y": "x"}.get(parameter, "")
        if operation.op not in ("add", "mul") and (operation.op, parameter) != ("real_div", "x"):
            return False
        constant = self._array(operation, other)
        return constant is not None and bool(np.all(constant >= 0))

    def domain(self, operation: Operation, parameter: str, own: bool) -> Domain | None:
        """What an operation implies about the values of a parameter."""
        op, name = operation.op, f"{operation.op} `{operation.name}`"
        if parameter == "indices" and own:
            return self._indices(operation)
        if parameter == "begin" and own and op in _SLICES:
            how = f"{name} begins there and nothing implies how far it may go"
            sentence = f"ids: 0 and 1, for {how}"
            return Domain("default", Input(kind="ids", count=2), sentence)
        exponent = self._array(operation, "y") if (op, parameter) == ("pow", "x") else None
        is_root = exponent is not None and bool(np.any(exponent != np.rint(exponent)))
        if is_root or _POSITIVE.get(op) == parameter:
            verb = "divides by it" if op == "real_div" else "takes it"
            return Domain("derived", Input(kind="positive"), f"positive: {name} {verb}")
        if op in _WITHIN and parameter == "x" and own:
            edge = _WITHIN[op]
            sentence = f"uniform: {name} is defined from -{edge:g} to {edge:g}"
            return Domain("derived", Input(kind="uniform", range=(-edge, edge)), sentence)
        return None

    def _indices(self, operation: Operation) -> Domain | None:
        if operation.op == "one_hot":
            size = int(self._array(operation, "one_hot_vector_size") or 0)
            return _below(size, f"classes of one_hot `{operation.name}`")
        if operation.op in _INDICES:
            parameter, at = _INDICES[operation.op], int(self._array(operation, "axis") or 0)
            shape = self._shape(operation, parameter)
            extent = shape[at] if -len(shape) <= at < len(shape) else None
        elif operation.op == "gather_nd":
            parameter = "x"
            first = int(self._array(operation, "batch_dims") or 0)
            coordinates = (self._shape(operation, "indices") or (None,))[-1] or 0
            extents = self._shape(operation, parameter)[first : first + coordinates]
            known = [extent for extent in extents if extent is not None]
            extent = min(known) if known and len(known) == coordinates else None
        else:
            return None
        argument = _argument(operation, parameter)
        table = argument.name if isinstance(argument, Ref) else operation.name
        return _below(extent, f"rows of the table `{table}`")

    def _shape(self, operation: Operation, parameter: str) -> tuple[int | None, ...]:
        return self._shape_of(_argument(operation, parameter))

    def _shape_of(self, argument: Argument | None) -> tuple[int | None, ...]:
        kind = argument.type if isinstance(argument, Value) else None
        if isinstance(argument, Ref):
            kind = self._types.get(argument.name)
        if isinstance(kind, StateType):
            kind = kind.wrapped
        return kind.shape if isinstance(kind, TensorType) else ()

    def _array(self, operation: Operation, parameter: str) -> Array | None:
        argument = _argument(operation, parameter)
        value = self._uses.constants.get(argument.name) if isinstance(argument, Ref) else argument
        data = None if value is None else value.data
        array = np.asarray(data) if isinstance(data, np.ndarray | bool | int | float) else None
        return array if array is not None and array.dtype.kind in "fiub" else None


def _argument(operation: Operation, parameter: str) -> Argument | None:
    return next(iter(operation.inputs.get(parameter, ())), None)


def _below(count: int | None, what: str) -> Domain | None:
    if count is None or count < 1:
        return None
    return Domain("derived", Input(kind="ids", count=count), f"ids: {count} {what}")


_BYTE = 255
SAMPLER = 3
"""Version of what is drawn for a package's inputs, raised when the same table gives others."""


class Sampler:
    """Draws one call's arrays after another; ids go on where the call before left off."""

    def __init__(
        self, features: tuple[Feature, ...], subject: Path | str, domains: Mapping[str, Domain]
    ) -> None:
        self.features, self.subject, self.domains = features, subject, domains
        self._drawn: Counter[str] = Counter()

    def call(
        self,
        shapes: Mapping[str, Shape],
        kind: str,
        probe: tuple[object, ...],
        number: int,
        start: int = 0,
        call: int = 0,
    ) -> dict[str, Array]:
        """The inputs of one call by name: float32, int32, or bytes of an image.

        `kind` is that of floats of which nobody says more, `gaussian` or `unit-norm`; `probe` has
        parts of the seed, the manifest's first; `start` is the position of the call's first row,
        and `call` its number in a sequence. A number that is optional is left out of every second
        probe, the first one's too. `ProgramError` where an input's options do not fit its shape.
        """
        arrays: dict[str, Array] = {}
        for feature in self.features:
            if number % 2 == 0 and may_be_left_out(feature):
                continue
            name, spec = feature.name, self.domains[feature.name].input
            drawn = self._drawn[name]
            which = Call(probe, name, number, start, drawn, flexible_axis(feature), call)
            shape = shapes[name]
            if spec is None:
                arrays[name] = KINDS[kind](which.bits, shape or (1,)).reshape(shape)
                continue
            with self._naming(name):
                arrays[name] = _typed(feature, spec, draw(spec, shape, which))
            self._drawn[name] += arrays[name].size if spec.kind == "ids" else 1
        return arrays

    def positions(self, shapes: Mapping[str, Shape]) -> int:
        """Positions T of a call, by the first input of a kind that depends on them; else 1."""
        for feature in self.features:
            spec = self.domains[feature.name].input
            if spec is not None and spec.kind in POSITIONAL:
                shape = shapes[feature.name]
                with self._naming(feature.name):
                    axis = position_axis(spec, shape, flexible_axis(feature))
                if axis is not None:
                    return shape[axis]
        return 1

    def rows(self, shapes: Mapping[str, Shape]) -> int:
        """Positions T of a call: along the only flexible axis, else as `positions`, else of ids."""
        extents = {
            shapes[f.name][axis] for f in self.features if (axis := flexible_axis(f)) is not None
        }
        if len(extents) == 1:
            return extents.pop()
        if (known := self.positions(shapes)) > 1:
            return known
        ids = (shapes[name] for name, domain in self.domains.items() if domain.count is not None)
        return max((extent for shape in ids for extent in shape[-1:]), default=1)

    def spans(self, calls: Sequence[Arrays], step: int | None = None) -> Calls:
        """Of each call the position of its first row and T, where an input of positions says so."""
        names = [name for name, domain in self.domains.items() if domain.kind == "positions"]
        shapes = [{name: np.shape(x) for name, x in call.items()} for call in calls]
        return tuple(
            (int(np.min(call[names[0]])), step or self.rows(each))
            for call, each in zip(calls, shapes, strict=True) if names
        )  # fmt: skip

    def calls_left(self, shapes: Mapping[str, Shape], most: int) -> int:
        """Further calls until all ids and pictures of inputs that need at most `most` are drawn."""
        needed = [0]
        for name, domain in self.domains.items():
            if domain.input is not None and domain.input.pictures:
                needed.append(len(domain.input.pictures) - self._drawn[name])
            if domain.count is not None and domain.count <= COVERED:
                left = domain.count - self._drawn[name]
                needed.append(math.ceil(max(left, 0) / math.prod(shapes[name])))
        return max(calls for calls in needed if calls <= most)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise ProgramError(f"{self.subject}: input {name!r} {error}.") from None


def _typed(feature: Feature, spec: Input, values: Array) -> Array:
    if feature.dtype in FLOATS:
        return values.astype(np.float32)
    # A positive value does not become 0.
    whole = np.ceil(values) if spec.kind == "positive" else np.rint(values)
    if feature.kind != "image":
        return whole.astype(np.int32)
    if whole.min() < 0 or whole.max() > _BYTE:
        raise ValueError(f"is an image, whose pixels are 0 to 255; {spec.kind} goes beyond")
    return whole.astype(np.uint8)


def flexible_axis(feature: Feature) -> int | None:
    """An input's only flexible axis; None where none or several are flexible."""
    axes = [axis for axis, (low, high) in enumerate(feature.extents) if low != high]
    return axes[0] if len(axes) == 1 else None
