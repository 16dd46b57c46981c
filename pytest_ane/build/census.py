"""The census: what became of every weight of a program, read from the program alone.

A weight is a floating-point constant that a compute operation takes as an input, under the name
it had before compression. Because the file is read, not the converter's word, the census works
for any package, and a weight that the converter silently declined shows up as what it is: fp16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_ane.build.stages import Stage, bits_of, bytes_of, bytes_stored, sparsity, stages_of
from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import Function, MLModel, Operation, Ref, TensorType

_SUFFIXES = re.compile(r"(_palettized|_pcs|_quantized|_sparsified|_pruned)+$")
"""What coremltools' compression passes append to a weight's name."""
_MOST_ELEMENTS = 2**53
_FLOATS = ("fp16", "fp32", "bf16")


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
        """The stage that tables or scales of the weight itself belong to."""
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable form."""
        return {"weights": [asdict(weight) for weight in self.weights]}


@dataclass(frozen=True)
class Found:
    """A weight where a function has it.

    Attributes:
        weight: what the census says of it.
        operation: yields the dense weight.
        function: whose operations these are.
        producers: the function's operations by the names of their outputs.
    """

    weight: Weight
    operation: Operation
    function: Function
    producers: dict[str, Operation]


def take_census(model: MLModel) -> Census:
    """Census of every function's weights; one shared by several operations counts once.

    Raises:
        ProgramError: a weight's shape is none that a weight can have.
    """
    takers: dict[Weight, set[str]] = {}
    for found in find_weights(model):
        alone = replace(found.weight, op_types=())
        takers.setdefault(alone, set()).update(found.weight.op_types)
    return Census(tuple(replace(w, op_types=tuple(sorted(t))) for w, t in takers.items()))


def find_weights(model: MLModel) -> Iterator[Found]:
    """Every weight with the operations it comes from, once for each function that has it."""
    for function in model.program.functions.values():
        producers = {out.name: op for op in function.walk() for out in op.outputs}
        takers: dict[str, set[str]] = {}
        for op in function.walk():
            if op.op == "const" or op.op.startswith("constexpr_"):
                continue
            for argument in (a for group in op.inputs.values() for a in group):
                if isinstance(argument, Ref) and argument.name in producers:
                    takers.setdefault(argument.name, set()).add(op.op)
        for name, ops in takers.items():
            operation = producers[name]
            try:
                weight = _weight(operation, producers)
            except ValueError as error:
                raise ProgramError(
                    f"{model.path}: the weight {name} is damaged: {error}."
                ) from None
            if weight is not None:
                weight = replace(weight, op_types=tuple(sorted(ops)))
                yield Found(weight, operation, function, producers)


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
    own = next((stage for stage in stages if not stage.of_table), None)
    return Weight(
        name=name,
        shape=shape,
        compressed_bytes=bytes_stored(op, producers),
        nbits=own.nbits if own else 0,
        stages=stages,
        sparsity=sparsity(op, producers, shape),
    )
