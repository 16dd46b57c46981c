"""How a compressed weight is expanded: its chain of `constexpr_*` operations, read backwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ane.mil.records import Operation, Ref, TensorType, Value, ValueType
from pytest_ane.mil.values import bits

Producers: TypeAlias = Mapping[str, Operation]
Source: TypeAlias = "Value | Operation"

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
        """Tables or scales in all."""
        return self.groups * self.blocks


def stages_of(
    op: Operation, producers: Producers, *, of_table: bool = False, depth: int = DEEPEST
) -> tuple[Stage, ...]:
    """The operations that yield a result, from what is stored to `op` itself."""
    if not depth:
        return ()
    parameters = _parameters(op, producers)
    found: list[Stage] = []
    for key in (*_DATA, "lut"):
        if isinstance(source := parameters.get(key), Operation):
            table = of_table or key == "lut"
            found += stages_of(source, producers, of_table=table, depth=depth - 1)
    return (*dict.fromkeys(found), _stage(op, parameters, of_table))


def bytes_stored(op: Operation, producers: Producers, depth: int = DEEPEST) -> int:
    """Bytes of all constants below an operation."""
    if not depth:
        return 0
    below = {id(p): p for p in _parameters(op, producers).values()}
    return sum(
        bytes_of(p) if isinstance(p, Value) else bytes_stored(p, producers, depth - 1)
        for p in below.values()
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
    found = {key: value for key, value in parameters.items() if isinstance(value, Value)}
    return found if len(found) == len(parameters) else {}


def bits_of(kind: ValueType) -> int:
    """Bits of one element of a tensor; 0 for anything else."""
    if not isinstance(kind, TensorType) or kind.dtype.value == "string":
        return 0
    return bits(kind.dtype)


def bytes_of(value: Value) -> int:
    """Bytes of a constant as stored."""
    return math.ceil(math.prod(_dims(value)) * bits_of(value.type) / 8)


def _stage(op: Operation, parameters: Mapping[str, Source], of_table: bool) -> Stage:
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


def _parameters(op: Operation, producers: Producers) -> dict[str, Source]:
    """Constants, or the `constexpr_*` operations that expand them in turn."""
    return dict(_sources(op, producers))


def _sources(op: Operation, producers: Producers) -> Iterator[tuple[str, Source]]:
    for name, value in op.attributes.items():
        if name != "name":
            yield name, value
    for name, arguments in op.inputs.items():
        for argument in arguments:
            source: Source | None = argument if isinstance(argument, Value) else None
            if isinstance(argument, Ref):
                source = producers.get(argument.name)
            if isinstance(source, Operation) and source.op == "const":
                source = source.attributes.get("val")
            if source is not None:
                yield name, source


def _type(source: Source) -> ValueType:
    """An operation's last result is its values; sparse ones yield a mask before them."""
    return source.type if isinstance(source, Value) else source.outputs[-1].type


def _dims(source: Source | None) -> tuple[int, ...]:
    kind = None if source is None else _type(source)
    return tuple(int(d or 0) for d in kind.shape) if isinstance(kind, TensorType) else ()
