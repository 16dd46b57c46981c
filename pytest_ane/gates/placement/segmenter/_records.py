"""What the segmenter works on, and what it answers.

A graph is a list of operations in file order, whether it comes from a MIL program or a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

Backend = Literal["ane", "bnns", "classic", "gpu"]
Unit = Literal["ANE", "CPU", "GPU"]
Units = Literal["CPU_AND_NE", "ALL"]
NoData = Literal["compressed weights", "flexible shapes", "nested blocks", "several functions",
                 "states"]  # fmt: skip
Work = Literal["large", "small", "unknown"]
Cause = Literal["unsupported", "neighbour", "too little work", "cheaper on the GPU"]

BACKENDS: Mapping[Units, tuple[Backend, ...]] = {
    "CPU_AND_NE": ("ane", "bnns", "classic"),
    "ALL": ("ane", "bnns", "classic", "gpu"),
}
UNIT: Mapping[Backend, Unit] = {"ane": "ANE", "bnns": "CPU", "classic": "CPU", "gpu": "GPU"}

_SIZES = {"bool": 1, "fp32": 4, "int32": 4, "uint32": 4, "fp64": 8, "int64": 8, "uint64": 8}
_SIZES |= {"int8": 1, "uint8": 1, "int4": 1, "uint4": 1}

Shape: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True)
class Tensor:
    """A tensor an operation reads or computes, `constant` where the program holds its value.

    An extent known only at run time is None; the dtype is MIL's name, such as `fp16`.
    """

    shape: Shape
    dtype: str = "fp16"
    constant: bool = False

    @cached_property
    def elements(self) -> int:
        """Number of elements; an extent known only at run time counts as 1."""
        return math.prod(extent or 1 for extent in self.shape)

    @cached_property
    def bytes(self) -> int:
        """Size in memory; 2 bytes an element for 16-bit types."""
        return self.elements * _SIZES.get(self.dtype, 2)


@dataclass(frozen=True)
class Op:
    """One operation of a graph.

    Attributes:
        kind: the op type, such as `conv`.
        inputs: tensors it computes with: run-time inputs, and constant operands of element-wise
            operations. Weights and parameters (axes, shapes, a norm's scale) are left out.
        weight: of `conv`, `conv_transpose` (MIL's layout) and `linear` ([N, K]).
        attributes: integers by MIL's parameter names, such as `strides`, `dilations`, `groups`,
            `kernel_sizes`, `perm`, `transpose_x`; besides `bias`, 1 where there is one,
            `runtime_indices` and `runtime_begin`.
        no_data: its properties that no public plan has.
        boundary: whether it is no compute op: at the function's boundary, or index arithmetic.
    """

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight: Tensor | None = None
    attributes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    no_data: tuple[NoData, ...] = ()
    boundary: bool = False

    @property
    def known(self) -> bool:
        return all(None not in tensor.shape for tensor in (*self.inputs, *self.outputs))

    def flag(self, name: str, default: int = 0) -> int:
        return next(iter(self.attributes.get(name, ())), default)


@dataclass(frozen=True)
class Off:
    """Why an operation is predicted off the ANE.

    Attributes:
        cause: `unsupported`; `neighbour` where it would be on the ANE if an unsupported operation
            near it were; else `too little work` on the CPU, and `cheaper on the GPU` there.
        limit: the limit that makes it unsupported.
        short_ms: cost of the best path with it on the ANE, less that of the best path.
        neighbour: name of the unsupported operation.
    """

    cause: Cause
    limit: str = ""
    short_ms: float | None = None
    neighbour: str = ""


@dataclass(frozen=True)
class Placed:
    """A predicted operation.

    Attributes:
        unit: where it runs; `None` where nothing is known of its shapes.
        ms: estimated duration on that unit, as Core ML's cost model has it.
        margin: cost of the best path without it on that unit, less that of the best path;
            `None` where no other unit supports it.
        undecided: margin below the model's limit, or a tie, or nothing known.
        boundary: as of its `Op`.
        work: of the row of supported operations it is in, on a chip whose costs are unknown.
    """

    name: str
    kind: str
    unit: Unit | None
    ms: float | None
    margin: float | None
    undecided: bool
    off: Off | None = None
    boundary: bool = False
    work: Work | None = None


@dataclass(frozen=True)
class Segment:
    """Operations in a row on one unit: indices `first` to `last` of the graph."""

    unit: Unit
    first: int
    last: int
    ms: float


@dataclass(frozen=True)
class Prediction:
    """Predicted placement of a graph; never a measurement.

    Attributes:
        system: empty where the chip's costs are unknown.
        total_ms: cost of the best path, launches and switches included; `None` where Core ML makes
            no estimates, or the chip's costs are unknown, so that there is no path.
        without_ane_ms: cost of the best path that leaves the ANE out; `None` as above.
        no_data: sentences on what the prediction rests on without data.
    """

    chip: str
    system: str
    units: Units
    operations: tuple[Placed, ...]
    segments: tuple[Segment, ...]
    total_ms: float | None
    without_ane_ms: float | None
    no_data: tuple[str, ...]

    @property
    def switches(self) -> int:
        return max(len(self.segments) - 1, 0)

    @property
    def margin(self) -> float | None:
        """What the ANE saves: the best path without it, less the best path, in ms."""
        without, total = self.without_ane_ms, self.total_ms
        return None if total is None or without is None else max(without - total, 0.0)


@dataclass(frozen=True)
class Predicted:
    """The prediction of one function, perhaps at a T; `unknown` is why shapes are not known."""

    function: str
    tokens: int | None
    prediction: Prediction
    unknown: str = ""
    ops: tuple[Op, ...] = field(default=(), repr=False)

    @property
    def compute(self) -> tuple[Placed, ...]:
        """Operations but those that only convert an input or output, or make indices."""
        return tuple(op for op in self.prediction.operations if not op.boundary)

    def weakness(self) -> tuple[bool, int, int, float]:
        """Sorts what is likelier to leave the ANE before what is not."""
        off = sum(op.unit != "ANE" for op in self.compute)
        decided = sum(not op.undecided for op in self.compute)
        margin = self.prediction.margin
        return (not self.unknown, -off, decided, math.inf if margin is None else margin)
