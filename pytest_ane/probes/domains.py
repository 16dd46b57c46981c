"""What each input of a package is drawn from: as the manifest says, or as the program implies.

An input is followed through casts, reshapes and other operations that only move its values, to the
operations that take them. Indices of a gather are below the extent of its table, and what a
logarithm takes is positive. What nothing implies is drawn as the probe's kind says, integers as 0
or 1, which is inside every vocabulary.

`Sampler` draws a package's inputs from its domains, one call after another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pytest_ane.make.palettize.choose import Uses
from pytest_ane.manifest import Input
from pytest_ane.manifest.ids import nearest
from pytest_ane.mlprogram.arrays import Array
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
from pytest_ane.probes.inputs import COVERED, POSITIONAL, Call, Domain, Shape, draw, position_axis
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

    Where a reference is given, what it implies decides. `ProgramError` where the manifest names an
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
            raise ProgramError(
                f"{subject}: has no input {name!r}, which the manifest names; "
                f"{nearest(name, names)}."
            )


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
    """What a function implies about its inputs, by input; nothing of the others.

    Where several operations imply something, the beginning of a slice decides, for a table of
    positions is often longer than what is left of a state; then ids below the smallest count.
    """
    graph = _Graph(function)
    result: dict[str, Domain] = {}
    for named in function.inputs:
        reasons = [d for use in graph.uses_of(named.name) if (d := graph.domain(*use)) is not None]
        if reasons:
            result[named.name] = min(
                reasons, key=lambda d: 0 if d.kind == "positions" else d.count or math.inf
            )
    return result


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
_POSITIVE = {
    "inverse": "x", "log": "x", "real_div": "y", "rsqrt": "x", "sqrt": "x",
}  # fmt: skip
"""Operations whose parameter is drawn positive: other values give NaN or infinity."""
_WITHIN = {"acos": 1.0, "asin": 1.0, "atanh": 0.99}
"""Operations that are defined between minus and plus this value."""
_Use: TypeAlias = "tuple[Operation, str, bool]"
"""An operation, its parameter, and whether the values are still the input's own."""


class _Graph:
    def __init__(self, function: Function) -> None:
        self._stateful = any(isinstance(named.type, StateType) for named in function.inputs)
        self._types: dict[str, ValueType] = {n.name: n.type for n in function.inputs}
        for operation in function.walk():
            self._types |= {output.name: output.type for output in operation.outputs}
        self._uses = Uses(function)

    def uses_of(self, name: str) -> Iterator[_Use]:
        """The operations that take an input's values, moved or scaled by positive constants."""
        waiting, visited = [(name, True)], {(name, True)}
        while waiting:
            value, own = waiting.pop(0)
            for use in self._uses.ops.get(value, ()):
                operation, parameter = use.op, use.parameter
                yield operation, parameter, own
                # `select` as a negative index becomes one from the end.
                moves = ("a", "b") if operation.op == "select" else (_MOVES.get(operation.op),)
                moved = parameter in moves
                if moved or self._scales(operation, parameter):
                    after = own and moved
                    following = [(output.name, after) for output in operation.outputs]
                    waiting += [step for step in following if step not in visited]
                    visited.update(following)

    def _scales(self, operation: Operation, parameter: str) -> bool:
        """Whether positive values stay positive: a constant is added, or multiplies them."""
        other = {"x": "y", "y": "x"}.get(parameter, "")
        if operation.op not in ("add", "mul") and (operation.op, parameter) != ("real_div", "x"):
            return False
        constant = self._array(operation, other)
        return constant is not None and bool(np.all(constant >= 0))

    def domain(self, operation: Operation, parameter: str, own: bool) -> Domain | None:
        """What an operation implies about the values of a parameter."""
        op = operation.op
        if parameter == "indices" and own:
            return self._indices(operation)
        if parameter == "begin" and own and op in _SLICES:
            return self._begin(operation)
        if _POSITIVE.get(op) == parameter or (parameter == "x" and self._is_root(operation)):
            verb = "divides by it" if op == "real_div" else "takes it"
            sentence = f"positive: {op} `{operation.name}` {verb}"
            return Domain("derived", Input(kind="positive"), sentence)
        if op in _WITHIN and parameter == "x" and own:
            edge = _WITHIN[op]
            sentence = f"uniform: {op} `{operation.name}` is defined from -{edge:g} to {edge:g}"
            return Domain("derived", Input(kind="uniform", range=(-edge, edge)), sentence)
        return None

    def _is_root(self, operation: Operation) -> bool:
        exponent = self._array(operation, "y") if operation.op == "pow" else None
        return exponent is not None and bool(np.any(exponent != np.rint(exponent)))

    def _indices(self, operation: Operation) -> Domain | None:
        if operation.op == "one_hot":
            size = self._array(operation, "one_hot_vector_size")
            classes = None if size is None else int(size)
            return _below(classes, f"classes of one_hot `{operation.name}`")
        if operation.op in _INDICES:
            parameter, axis = _INDICES[operation.op], self._array(operation, "axis")
            shape = self._shape(operation, parameter)
            at = 0 if axis is None else int(axis)
            extent = shape[at] if -len(shape) <= at < len(shape) else None
        elif operation.op == "gather_nd":
            parameter = "x"
            batch = self._array(operation, "batch_dims")
            first = 0 if batch is None else int(batch)
            coordinates = (self._shape(operation, "indices") or (None,))[-1] or 0
            extents = self._shape(operation, parameter)[first : first + coordinates]
            known = [extent for extent in extents if extent is not None]
            extent = min(known) if known and len(known) == coordinates else None
        else:
            return None
        argument = _argument(operation, parameter)
        table = argument.name if isinstance(argument, Ref) else operation.name
        return _below(extent, f"rows of the table `{table}`")

    def _begin(self, operation: Operation) -> Domain:
        begins = f"{operation.op} `{operation.name}` begins there"
        if self._stateful:
            return Domain("derived", Input(kind="positions"), f"positions: {begins}")
        sentence = f"ids: 0 and 1, for {begins} and nothing implies how far it may go"
        return Domain("default", Input(kind="ids", count=2), sentence)

    def _shape(self, operation: Operation, parameter: str) -> tuple[int | None, ...]:
        argument = _argument(operation, parameter)
        kind = argument.type if isinstance(argument, Value) else None
        if isinstance(argument, Ref):
            kind = self._types.get(argument.name)
        if isinstance(kind, StateType):
            kind = kind.wrapped
        return kind.shape if isinstance(kind, TensorType) else ()

    def _array(self, operation: Operation, parameter: str) -> Array | None:
        """A constant argument that stands in the program itself; None for any other."""
        argument = _argument(operation, parameter)
        value = self._uses.constants.get(argument.name) if isinstance(argument, Ref) else argument
        array = None if value is None else value.data
        if isinstance(array, bool | int | float):
            array = np.asarray(array)
        return array if isinstance(array, np.ndarray) and array.dtype.kind in "fiub" else None


def _argument(operation: Operation, parameter: str) -> Argument | None:
    return next(iter(operation.inputs.get(parameter, ())), None)


def _below(count: int | None, what: str) -> Domain | None:
    if count is None or count < 1:
        return None
    return Domain("derived", Input(kind="ids", count=count), f"ids: {count} {what}")


_BYTE = 255
SAMPLER = 2
"""Version of what is drawn for a package's inputs, raised when the same table gives others."""


class Sampler:
    """Draws one call's arrays after another; ids go on where the call before left off."""

    def __init__(
        self, features: tuple[Feature, ...], subject: Path | str, domains: Mapping[str, Domain]
    ) -> None:
        self.features = features
        self.subject = subject
        self.domains = domains
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
            if spec is None:
                shape = shapes[name]
                arrays[name] = KINDS[kind](which.bits, shape or (1,)).reshape(shape)
                continue
            with self._naming(name):
                arrays[name] = _typed(feature, spec, draw(spec, shapes[name], which))
            if spec.kind == "ids":
                self._drawn[name] += arrays[name].size
            elif spec.pictures:
                self._drawn[name] += 1
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

    def calls_left(self, shapes: Mapping[str, Shape], most: int) -> int:
        """Further calls after which each id, and each picture, was drawn.

        Inputs that need more than `most` calls do not count.
        """
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
    ranges = feature.ranges or [(min(e), max(e)) for e in zip(*feature.enumerated, strict=True)]
    axes = [axis for axis, (low, high) in enumerate(ranges) if low != high]
    return axes[0] if len(axes) == 1 else None
