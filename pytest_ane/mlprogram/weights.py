"""The weights of a program, read from the program alone: a census, and their values.

A weight is a floating-point constant that a compute operation takes as an input, under the name it
had before compression. Because the file is read, not the converter's word, the census works for any
package, and a weight that the converter silently declined shows up as what it is: fp16.

A compressed weight is expanded by a chain of `constexpr_*` operations, its stages, which are read
backwards from the dense weight. `decompress` gives its values as the executor decodes them, by rows
where that is possible.

    for weight in take_census(read_model(path)).weights:
        print(weight.name, weight.nbits, weight.storage)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.mlprogram.blob import load, packed
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor.ops.constexpr import constexpr_blockwise_shift_scale
from pytest_ane.mlprogram.executor.prepare import Constants
from pytest_ane.mlprogram.executor.weights import Packed, StreamedWeight, decode
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.records import (
    DType,
    Function,
    MLModel,
    Operation,
    Ref,
    TensorType,
    Value,
    ValueType,
)
from pytest_ane.mlprogram.values import bits

Producers: TypeAlias = Mapping[str, Operation]
Operand: TypeAlias = "Value | Operation"

SPARSE = "constexpr_sparse_to_dense"
_PALETTES = ("constexpr_lut_to_dense", "constexpr_lut_to_sparse")
_SCALES = (
    "constexpr_affine_dequantize",
    "constexpr_blockwise_shift_scale",
    "constexpr_sparse_blockwise_shift_scale",
)
_DATA = ("indices", "indices_nonzero_data", "data", "quantized_data", "nonzero_data", "source_val")
DEEPEST = 4
"""Operations that expand one another's results, such as a quantized table of a sparse weight."""
_SUFFIXES = re.compile(r"(_palettized|_pcs|_quantized|_sparsified|_pruned)+$")
"""What coremltools' compression passes append to a weight's name."""
_MOST_ELEMENTS = 2**53
_FLOATS = ("fp16", "fp32", "bf16")


@dataclass(frozen=True)
class Stage:
    """One operation of those that expand a weight.

    Attributes:
        op: such as `constexpr_lut_to_dense`.
        nbits: bits of one element that it expands: of an index, of an integer under a scale.
        groups: look-up tables or scales along the first axis.
        blocks: the same along all further axes together.
        of_table: whether it yields a look-up table, not the weight.
        vector: length of a table's entries; more than 1 is vector palettization.
    """

    op: str
    nbits: int
    groups: int = 1
    blocks: int = 1
    of_table: bool = False
    vector: int = 1

    def __post_init__(self) -> None:
        if min(self.nbits, self.groups, self.blocks, self.vector) < 0:
            raise ValueError(f"a count of {self.op} is negative")

    @property
    def is_palette(self) -> bool:
        """Whether it looks indices up in tables."""
        return self.op in _PALETTES

    @property
    def is_scale(self) -> bool:
        """Whether it scales what it expands."""
        return self.op in _SCALES

    @property
    def is_quantization(self) -> bool:
        """Whether it scales integers; tables in fp16 may be scaled by channel as well."""
        return self.is_scale and self.nbits <= 8

    @property
    def count(self) -> int:
        """Look-up tables or scales of the whole weight: `groups * blocks`."""
        return self.groups * self.blocks


def stages_of(
    op: Operation, producers: Producers, *, of_table: bool = False, depth: int = DEEPEST
) -> tuple[Stage, ...]:
    """The operations that yield a result, from what is stored to `op` itself."""
    if not depth:
        return ()
    parameters = _parameters(op, producers)
    below: list[Stage] = []
    for key in (*_DATA, "lut"):
        if isinstance(source := parameters.get(key), Operation):
            table = of_table or key == "lut"
            below += stages_of(source, producers, of_table=table, depth=depth - 1)
    return (*dict.fromkeys(below), _stage(op, parameters, of_table))


def bytes_stored(op: Operation, producers: Producers, depth: int = DEEPEST) -> int:
    """Bytes of all constants below an operation."""
    if not depth:
        return 0
    constants = {id(p): p for p in _parameters(op, producers).values()}
    return sum(
        bytes_of(p) if isinstance(p, Value) else bytes_stored(p, producers, depth - 1)
        for p in constants.values()
    )


def sparsity(op: Operation, producers: Producers, shape: tuple[int, ...]) -> float:
    """Share of a weight that is left out as zeros; 0 where everything is stored."""
    if op.op != SPARSE or not (size := math.prod(shape)):
        return 0.0
    stored = math.prod(_dims(_parameters(op, producers).get("nonzero_data")))
    return (size - stored) / size


def constants_of(op: Operation, producers: Producers) -> dict[str, Value]:
    """An operation's parameters by name; none where one of them is computed."""
    parameters = _parameters(op, producers)
    constants = {key: value for key, value in parameters.items() if isinstance(value, Value)}
    return constants if len(constants) == len(parameters) else {}


def bits_of(kind: ValueType) -> int:
    """Bits of one element of a tensor; 0 for anything else."""
    if not isinstance(kind, TensorType) or kind.dtype.value == "string":
        return 0
    return bits(kind.dtype)


def bytes_of(value: Value) -> int:
    """Bytes of a constant as stored: elements times bits, rounded up."""
    return math.ceil(math.prod(_dims(value)) * bits_of(value.type) / 8)


def _stage(op: Operation, parameters: Mapping[str, Operand], of_table: bool) -> Stage:
    table, vector = parameters.get("lut"), 1
    if table is not None:
        # From iOS 18 on [groups, blocks, ..., entries, vector]; before, one table: [entries].
        dims = _dims(table)
        entries, vector = dims[-2:] if len(dims) > 1 else (math.prod(dims), 1)
        nbits, grid = max(1, (entries - 1).bit_length()), dims[:-2]
    else:
        data = next((parameters[key] for key in _DATA if key in parameters), None)
        nbits = 0 if data is None else bits_of(_type(data))
        grid = _dims(parameters.get("scale"))
    groups = grid[0] if grid else 1
    return Stage(op.op, nbits, groups, math.prod(grid[1:]), of_table, vector)


def _parameters(op: Operation, producers: Producers) -> dict[str, Operand]:
    """By name, what each comes from, constants looked through."""
    found: dict[str, Operand] = {k: value for k, value in op.attributes.items() if k != "name"}
    for name, argument in ((n, a) for n, arguments in op.inputs.items() for a in arguments):
        source = producers.get(argument.name) if isinstance(argument, Ref) else argument
        if isinstance(source, Operation) and source.op == "const":
            source = source.attributes.get("val")
        if source is not None:
            found[name] = source
    return found


def _type(source: Operand) -> ValueType:
    """An operation's last result is its values; sparse ones yield a mask before them."""
    return source.type if isinstance(source, Value) else source.outputs[-1].type


def _dims(source: Operand | None) -> tuple[int, ...]:
    kind = None if source is None else _type(source)
    return tuple(int(d or 0) for d in kind.shape) if isinstance(kind, TensorType) else ()


@dataclass(frozen=True)
class Weight:
    """One weight as the file holds it.

    Attributes:
        name: its name before compression.
        shape: of the dense weight; `elements` their product.
        compressed_bytes: data, masks, tables and scales as stored.
        nbits: bits of one stored element.
        stages: the operations that expand it, from what is stored to the dense weight; none where
            it is uncompressed.
        sparsity: share of elements that are not stored because they are zero.
        op_types: the operations that take it, sorted.
    """

    name: str
    shape: tuple[int, ...]
    compressed_bytes: int
    nbits: int
    stages: tuple[Stage, ...] = ()
    sparsity: float = 0.0
    op_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 0 or self.elements > _MOST_ELEMENTS:
            raise ValueError("no weight has such a shape")
        if min(self.compressed_bytes, self.nbits) < 0 or not 0 <= self.sparsity <= 1:
            raise ValueError("its bytes or bits are negative, or its sparsity is no share")

    @property
    def elements(self) -> int:
        """Number of elements of the dense weight."""
        return math.prod(self.shape)

    @property
    def storage(self) -> str:
        """The operation that yields the dense weight, `const` for an uncompressed one."""
        return self.stages[-1].op if self.stages else "const"

    @property
    def groups(self) -> int:
        """Look-up tables or scales along the first axis; 0 where it is uncompressed."""
        return self._main.groups if self._main else 0

    @property
    def blocks(self) -> int:
        """The same along all further axes; more than 1 scale is per-block quantization."""
        return self._main.blocks if self._main else 0

    @property
    def _main(self) -> Stage | None:
        own = [stage for stage in self.stages if not stage.of_table]
        return next((s for s in own if s.is_palette or s.is_scale), own[-1] if own else None)


@dataclass(frozen=True)
class Census:
    """All weights of a program, in program order."""

    weights: tuple[Weight, ...]

    @property
    def dense_bytes(self) -> int:
        """Bytes of all weights in fp16."""
        return sum(2 * weight.elements for weight in self.weights)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(weight.compressed_bytes for weight in self.weights)


@dataclass(frozen=True)
class ProgramWeight:
    """A weight and its place in a function, whose operations `producers` has by their outputs."""

    weight: Weight
    operation: Operation
    function: Function
    producers: dict[str, Operation]


def take_census(model: MLModel) -> Census:
    """Census of all functions' weights, shared ones once; `ProgramError` of an impossible shape."""
    found = (each.weight for each in find_weights(model))
    takers = grouped((replace(w, op_types=()), op) for w in found for op in w.op_types)
    return Census(tuple(replace(w, op_types=tuple(sorted({*t}))) for w, t in takers.items()))


def find_weights(model: MLModel) -> Iterator[ProgramWeight]:
    """Every weight with the operations it comes from, once for each function that has it."""
    for function in model.program.functions.values():
        producers = {out.name: op for op in function.walk() for out in op.outputs}
        takers = grouped(
            (name, op.op)
            for op in function.walk()
            if op.op != "const" and not op.op.startswith("constexpr_")
            for name in op.reads
        )
        for name in filter(producers.__contains__, takers):
            operation = producers[name]
            try:
                weight = _weight(operation, producers)
            except ValueError as error:
                says = f"the weight {name} is damaged: {error}"
                raise ProgramError(f"{model.path}: {says}.") from None
            if weight is not None:
                weight = replace(weight, op_types=tuple(sorted({*takers[name]})))
                yield ProgramWeight(weight, operation, function, producers)


def constant_name(op: Operation) -> str:
    """A constant's own name, by which `get_weights_metadata` and the manifest know it.

    What it yields may have another, and compression passes name what they put in its place after
    the constant.
    """
    name = op.attributes.get("name")
    return str(name.data) if name is not None else op.name


def plain_name(name: str) -> str:
    """A weight's name without what coremltools' compression passes append."""
    return _SUFFIXES.sub("", name)


def _weight(op: Operation, producers: dict[str, Operation]) -> Weight | None:
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype.value not in _FLOATS:
        return None
    shape = tuple(int(d) for d in kind.shape if d is not None)
    if len(shape) != len(kind.shape) or not shape:
        return None
    name = plain_name(op.name)
    if op.op == "const":
        value = op.attributes.get("val")
        bits, size = (bits_of(value.type), bytes_of(value)) if value else (0, 0)
        return Weight(name, shape, size, bits)
    if not op.op.startswith("constexpr_"):
        return None
    stages = stages_of(op, producers)
    nbits = next((stage.nbits for stage in stages if not stage.of_table), 0)
    size, share = bytes_stored(op, producers), sparsity(op, producers, shape)
    return Weight(name, shape, size, nbits, stages, share)


def decompress(model: MLModel, weight: ProgramWeight) -> Any:
    """A weight's values: an array, or a `StreamedWeight` that decodes rows when they are read.

    Plain weights, palettes and integers under scales are decoded by rows. `ProgramError` where it
    is not what its package says, `ExecutionError` where it cannot be decoded.
    """
    values = _scaled(model, weight)
    if values is None:
        constants = Constants(model, weight.function.opset, "as-typed", memory_budget=0)
        for op in expansion(weight, model.path):
            constants.fold(op)
        values = constants.values[weight.operation.name]
    if tuple(values.shape) != (declared := weight.weight.shape):
        stored = f"but what is stored of it is of shape {list(values.shape)}"
        is_of = f"{weight.operation.name} is of shape {list(declared)}"
        raise ProgramError(f"{model.path}: {is_of}, {stored}.")
    return values


def _scaled(model: MLModel, weight: ProgramWeight) -> StreamedWeight | None:
    """Integers with one scale, or one for each row; None for any other weight.

    They are decoded as indices into tables of what every integer stands for.
    """
    op, kind = weight.operation, weight.operation.outputs[0].type
    stored = constants_of(op, weight.producers)
    if op.op != "constexpr_blockwise_shift_scale" or not {"data", "scale"} <= stored.keys():
        return None
    data, scale = stored["data"].type, load(model, stored["scale"])
    if not isinstance(data, TensorType) or not isinstance(kind, TensorType):
        return None
    numbers, shape = _NUMBERS.get(data.dtype), tuple(int(d or 0) for d in data.shape)
    by_rows = scale.ndim == len(shape) and scale.size == scale.shape[0] in (1, shape[0])
    if numbers is None or kind.dtype is not DType.FP16 or not by_rows:
        return None
    offset = load(model, stored["offset"]).reshape(-1, 1) if "offset" in stored else None
    wide = scale.astype(np.float32).reshape(-1, 1)
    grid = np.broadcast_to(numbers, (len(wide), len(numbers)))
    with np.errstate(over="ignore"):
        tables = constexpr_blockwise_shift_scale(grid, wide, offset).astype(np.float16)
    indices = Packed(packed(model, stored["data"]), len(numbers).bit_length() - 1, shape)
    rows = partial(decode, indices, tables.astype(np.float32))
    return StreamedWeight(shape, np.float32, rows)


_NUMBERS = {
    DType.UINT8: np.arange(256),
    DType.INT8: np.arange(256, dtype=np.uint8).view(np.int8),
    DType.UINT4: np.arange(16),
    DType.INT4: (np.arange(16) ^ 8) - 8,
}
"""What the bits of a stored integer stand for."""


def expansion(weight: ProgramWeight, path: str) -> Iterable[Operation]:
    """A weight's operation and all that it is computed from, in the order of computation."""
    levels = [{weight.operation: None}]
    while levels[-1]:
        if len(levels) > DEEPEST + 1:
            says = f"is expanded by more than {DEEPEST} operations, one after another"
            raise ProgramError(f"{path}: {weight.weight.name} {says}.")
        names = (name for op in levels[-1] for name in op.reads)
        levels.append({weight.producers[n]: None for n in names if n in weight.producers})
    return dict.fromkeys(op for level in reversed(levels) for op in level)
