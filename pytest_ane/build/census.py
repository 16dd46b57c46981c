"""The census: what became of every weight of a program, read from the program alone.

A weight is a floating-point constant that a compute operation takes as an input, under the name
it had before compression. Because the file is read, not the converter's word, the census works
for any package, and a weight that the converter silently declined shows up as what it is: fp16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ane.mil.records import Argument, Function, Model, Operation, Ref, TensorType, Value

_SUFFIXES = ("_palettized", "_quantized", "_pruned", "_palettized_pcs")
_FLOATS = ("fp16", "fp32", "bf16")


@dataclass(frozen=True)
class Weight:
    """One weight as the file holds it.

    Attributes:
        name: its name before compression.
        shape: of the dense weight; `elements` their product.
        storage: the operation that expands it, `const` for an uncompressed one.
        nbits: bits of one stored element.
        groups: look-up tables or scales along the output channels; 0 where it is `const`.
        blocks: scales along the input axis; more than 1 is per-block quantization.
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
    found: dict[str, Weight] = {}
    for function in model.program.functions.values():
        for weight in _weights(function):
            found.setdefault(weight.name, weight)
    return Census(tuple(found.values()))


def _weights(function: Function) -> Iterator[Weight]:
    producers = {out.name: op for op in function.walk() for out in op.outputs}
    for op in function.walk():
        if op.op == "const" or op.op.startswith("constexpr_"):
            continue
        for argument in (a for group in op.inputs.values() for a in group):
            producer = producers.get(argument.name) if isinstance(argument, Ref) else None
            if producer is not None and (weight := _weight(producer, producers)) is not None:
                yield weight


def _weight(op: Operation, producers: dict[str, Operation]) -> Weight | None:
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype.value not in _FLOATS:
        return None
    shape = tuple(int(d) for d in kind.shape if d is not None)
    if len(shape) != len(kind.shape) or not shape:
        return None
    if op.op == "const":
        return Weight(_plain(op.name), shape, "const", 16, 0, 0, _size(op.attributes["val"]))
    if op.op.startswith("constexpr_"):
        return _compressed(op, shape, producers)
    return None


def _compressed(op: Operation, shape: tuple[int, ...], producers: dict[str, Operation]) -> Weight:
    """A `constexpr_*` weight; its parameters are immediate, blobs, or another `constexpr_*`."""
    parameters = {
        name: value
        for name, arguments in op.inputs.items()
        for argument in arguments
        if (value := _constant(argument, producers)) is not None
    }
    parameters.update(op.attributes)
    data = next(
        (parameters[k] for k in ("indices", "data", "quantized_data", "nonzero_data")
         if k in parameters), None
    )  # fmt: skip
    table = parameters.get("lut") or parameters.get("scale")
    grid = _shape(table)
    return Weight(
        name=_plain(op.name),
        shape=shape,
        storage=op.op,
        nbits=_bits(data) if data is not None else 0,
        groups=grid[0] if grid else 1,
        blocks=grid[1] if len(grid) > 1 and table is not None else 1,
        compressed_bytes=sum(_size(v) for k, v in parameters.items() if k != "name"),
    )


def _constant(argument: Argument, producers: dict[str, Operation]) -> Value | None:
    if isinstance(argument, Value):
        return argument
    producer = producers.get(argument.name)
    return producer.attributes.get("val") if producer and producer.op == "const" else None


def _shape(value: Value | None) -> tuple[int, ...]:
    if value is None or not isinstance(value.type, TensorType):
        return ()
    return tuple(int(d or 0) for d in value.type.shape)


def _bits(value: Value) -> int:
    dtype = value.type.dtype.value if isinstance(value.type, TensorType) else ""
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) if digits else 0


def _size(value: Value) -> int:
    if not isinstance(value.type, TensorType) or isinstance(value.data, str):
        return 0
    elements = math.prod(_shape(value))
    return math.ceil(elements * _bits(value) / 8)


def _plain(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name

