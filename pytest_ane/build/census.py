"""The census: what became of every weight of a program, read from the program alone.

A weight is a floating-point constant that a compute operation takes as an input, under the name
it had before compression. Because the file is read, not the converter's word, the census works
for any package, and a weight that the converter silently declined shows up as what it is: fp16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from pytest_ane.mil.records import Function, Model, Operation, Ref, TensorType, Value

Producers: TypeAlias = "dict[str, Operation]"

_SUFFIXES = re.compile(r"(_palettized|_pcs|_quantized|_sparsified|_pruned)+$")
"""What coremltools' compression passes append to a weight's name."""
_FLOATS = ("fp16", "fp32", "bf16")
_DATA = ("indices", "data", "quantized_data", "nonzero_data")
_DEEPEST = 4
"""Operations that expand one another's results, such as a quantized table of a sparse weight."""


@dataclass(frozen=True)
class Weight:
    """One weight as the file holds it.

    Attributes:
        name: its name before compression.
        shape: of the dense weight; `elements` their product.
        storage: the operation that expands it, `const` for an uncompressed one.
        nbits: bits of one stored element.
        groups: look-up tables or scales along the first axis; 0 where it is `const`.
        blocks: the same along the second axis; more than 1 scale is per-block quantization.
        compressed_bytes: data, tables and scales as stored.
    """

    name: str
    shape: tuple[int, ...]
    storage: str
    nbits: int
    groups: int
    blocks: int
    compressed_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements of the dense weight."""
        return math.prod(self.shape)


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable form."""
        return {"weights": [asdict(weight) for weight in self.weights]}


def take_census(model: Model) -> Census:
    """Census of every function's weights; one shared by several operations counts once."""
    functions = model.program.functions.values()
    return Census(tuple(dict.fromkeys(w for function in functions for w in _weights(function))))


def _weights(function: Function) -> Iterator[Weight]:
    producers = {out.name: op for op in function.walk() for out in op.outputs}
    for op in function.walk():
        if op.op == "const" or op.op.startswith("constexpr_"):
            continue
        for argument in (a for group in op.inputs.values() for a in group):
            producer = producers.get(argument.name) if isinstance(argument, Ref) else None
            if producer is not None and (weight := _weight(producer, producers)) is not None:
                yield weight


def _weight(op: Operation, producers: Producers) -> Weight | None:
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype.value not in _FLOATS:
        return None
    shape = tuple(int(d) for d in kind.shape if d is not None)
    if len(shape) != len(kind.shape) or not shape:
        return None
    if op.op == "const":
        value = op.attributes.get("val")
        bits, size = (_bits(value), _size(value)) if value else (0, 0)
        return Weight(_plain(op.name), shape, "const", bits, 0, 0, size)
    if op.op.startswith("constexpr_"):
        return _compressed(op, shape, producers)
    return None


def _compressed(op: Operation, shape: tuple[int, ...], producers: Producers) -> Weight:
    parameters = _parameters(op, producers)
    table = parameters.get("lut") or parameters.get("scale")
    grid = _dims(table)
    if "lut" in parameters:
        # From iOS 18 on [groups, blocks, ..., entries, vector]; before, one table: [entries].
        grid = grid[:-2]
    return Weight(
        name=_plain(op.name),
        shape=shape,
        storage=op.op,
        nbits=_nbits(op, producers),
        groups=grid[0] if grid else 1,
        blocks=grid[1] if len(grid) > 1 else 1,
        compressed_bytes=_stored(op, producers, depth=_DEEPEST),
    )


def _parameters(op: Operation, producers: Producers) -> dict[str, Value | Operation]:
    """Constants, or the `constexpr_*` operations that expand them in turn."""
    found: dict[str, Value | Operation] = {k: v for k, v in op.attributes.items() if k != "name"}
    for name, arguments in op.inputs.items():
        for argument in arguments:
            source = argument if isinstance(argument, Value) else producers.get(argument.name)
            if isinstance(source, Operation) and source.op == "const":
                source = source.attributes.get("val")
            if source is not None:
                found[name] = source
    return found


def _nbits(op: Operation, producers: Producers) -> int:
    """Bits of an element: of an index where there is a table, which iOS 16 packs into bytes."""
    for _ in range(_DEEPEST):
        parameters = _parameters(op, producers)
        if dims := _dims(parameters.get("lut")):
            entries = dims[-2] if len(dims) > 1 else dims[0]
            return max(1, (entries - 1).bit_length())
        data = next((parameters[k] for k in _DATA if k in parameters), None)
        if isinstance(data, Value):
            return _bits(data)
        if data is None:
            break
        op = data
    return 0


def _stored(op: Operation, producers: Producers, depth: int) -> int:
    """Bytes of all constants below an operation."""
    if not depth:
        return 0
    return sum(
        _size(p) if isinstance(p, Value) else _stored(p, producers, depth - 1)
        for p in _parameters(op, producers).values()
    )


def _dims(source: Value | Operation | None) -> tuple[int, ...]:
    if source is None:
        return ()
    kind = source.type if isinstance(source, Value) else source.outputs[0].type
    return tuple(int(d or 0) for d in kind.shape) if isinstance(kind, TensorType) else ()


def _bits(value: Value) -> int:
    dtype = value.type.dtype.value if isinstance(value.type, TensorType) else ""
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) if digits else 0


def _size(value: Value) -> int:
    return math.ceil(math.prod(_dims(value)) * _bits(value) / 8)


def _plain(name: str) -> str:
    return _SUFFIXES.sub("", name)
