"""The records of a MIL program: what `.mlpackage` and `.mlmodelc` both read into.

Names follow Core ML's MIL.proto. Records are frozen; weights stay on disk as `Blob` until
`blob` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

from pytest_ane.mlprogram.arrays import Array


class DType(str, Enum):
    """Element types of MIL tensors (MIL.proto `DataType`)."""

    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"
    BF16 = "bf16"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT1 = "uint1"
    UINT2 = "uint2"
    UINT3 = "uint3"
    UINT4 = "uint4"
    UINT6 = "uint6"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"

    def __str__(self) -> str:
        return self.value


Dim: TypeAlias = "int | None"


@dataclass(frozen=True)
class TensorType:
    """A tensor's element type and shape; `None` is a dimension known only at run time."""

    dtype: DType
    shape: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class StateType:
    """A state (KV cache): a tensor that outlives one prediction."""

    wrapped: TensorType


@dataclass(frozen=True)
class ListType:
    """A list of values of one type; `length` is `None` when it grows at run time."""

    element: ValueType
    length: int | None = None


@dataclass(frozen=True)
class TupleType:
    """A tuple of values, each of its own type."""

    elements: tuple[ValueType, ...]


@dataclass(frozen=True)
class DictionaryType:
    """A dictionary from values of one type to values of another."""

    key: ValueType
    value: ValueType


ValueType: TypeAlias = "TensorType | StateType | ListType | TupleType | DictionaryType"


@dataclass(frozen=True)
class Blob:
    """Where a weight lies: `file` as the program writes it, `offset` of its metadata in bytes."""

    file: str
    offset: int


@dataclass(frozen=True, eq=False)
class Value:
    """A constant: immediate data (array, str, bool, ... or a tuple of those) or a `Blob`."""

    type: ValueType
    data: Array | str | tuple[Any, ...] | dict[Any, Any] | Blob


@dataclass(frozen=True)
class Ref:
    """The name of a value computed earlier in this block or in one around it."""

    name: str


Argument: TypeAlias = "Ref | Value"


@dataclass(frozen=True)
class Named:
    """A name with its type: a block's input, a function's input, an operation's output."""

    name: str
    type: ValueType


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation.

    Attributes:
        op: its name without an opset prefix, such as `conv` or `constexpr_lut_to_dense`.
        inputs: argument lists by parameter name; most have one element, `concat`'s `values` many.
        outputs: names and types of the results. The first is the key plans use.
        attributes: compile-time values besides the inputs (`name`, and `val` of a `const`).
        blocks: nested blocks of control flow.
    """

    op: str
    inputs: Mapping[str, tuple[Argument, ...]]
    outputs: tuple[Named, ...]
    attributes: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    blocks: tuple[Block, ...] = ()

    @property
    def name(self) -> str:
        """The first output's name: the join key of compute plans and messages."""
        return self.outputs[0].name if self.outputs else self.op

    @property
    def reads(self) -> Iterator[str]:
        """Names of the values that are its inputs; nested blocks may read others."""
        for arguments in self.inputs.values():
            yield from (argument.name for argument in arguments if isinstance(argument, Ref))

    def only(self, key: str) -> Argument | None:
        """A parameter that is one value: an attribute, or the only argument."""
        arguments = self.inputs.get(key, ())
        return self.attributes.get(key) or (arguments[0] if len(arguments) == 1 else None)


@dataclass(frozen=True, eq=False)
class Block:
    """A sequence of operations with its own inputs; `outputs` are names of values in scope."""

    inputs: tuple[Named, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]

    def walk(self) -> Iterator[Operation]:
        """Every operation, nested blocks included, in program order."""
        for operation in self.operations:
            yield operation
            for nested in operation.blocks:
                yield from nested.walk()


@dataclass(frozen=True, eq=False)
class Function:
    """A function: `block` is the specialisation chosen for its opset (`CoreML7`, `CoreML8`...)."""

    name: str
    opset: str
    inputs: tuple[Named, ...]
    block: Block

    def walk(self) -> Iterator[Operation]:
        """Every operation, nested blocks included, in program order."""
        return self.block.walk()


@dataclass(frozen=True, eq=False)
class Program:
    """A MIL program: functions by name, `main` among them unless the package says otherwise."""

    functions: Mapping[str, Function]

    @property
    def main(self) -> Function:
        """The function `main`, or the only function there is."""
        return self.functions.get("main") or next(iter(self.functions.values()))

    def only(self, name: str) -> Program:
        """The program with one of its functions, or with none if it has none of the name."""
        return Program({n: function for n, function in self.functions.items() if n == name})

    def walk(self) -> Iterator[Operation]:
        """Every operation of every function, nested blocks included."""
        for function in self.functions.values():
            yield from function.walk()


NUMBERS = ("doubleType", "int64Type")
"""Kinds of features that are one number, by Core ML's names."""


@dataclass(frozen=True)
class Feature:
    """A model's declared input, output or state: the type it has at the Core ML boundary.

    Attributes:
        shape: the default shape; () for a scalar or where Core ML leaves it open.
        ranges: per dimension `(low, high)`, `high` `None` for unbounded; empty for a fixed shape.
        enumerated: the allowed shapes where the model lists them.
        kind: `tensor`, `image`, `state`, or Core ML's name of another feature type.
        optional: it may be left out where there is a `default`, which then stands in every element.
        color: an image's layout: `RGB`, `BGR`, `GRAYSCALE` or `GRAYSCALE_FLOAT16`.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    ranges: tuple[tuple[int, int | None], ...] = ()
    enumerated: tuple[tuple[int, ...], ...] = ()
    kind: str = "tensor"
    optional: bool = False
    default: float | None = None
    color: str = ""

    @property
    def extents(self) -> tuple[tuple[int, int | None], ...]:
        """Per dimension the least and the most extent that it may have, `None` for unbounded."""
        if self.ranges and not self.enumerated:
            return self.ranges
        shapes = self.enumerated or (self.shape,)
        return tuple((min(axis), max(axis)) for axis in zip(*shapes, strict=True))


@dataclass(frozen=True, eq=False)
class MLModel:
    """A package or compiled model as read from disk: its program and what it declares.

    Attributes:
        path: the `.mlpackage` or `.mlmodelc` on disk.
        weights: folder that `Blob.file`'s `@model_path` stands for.
        specification_version: Core ML's, 9 for iOS 18.
        inputs, outputs, states: what Core ML declares of the function that was chosen.
        program: with the chosen function alone, where one was chosen by name.
        function: the chosen function's name, of several; empty where there is only one.
        part: of a pipeline's part, its folder in the compiled pipeline, such as `model0`; else
            empty.
    """

    path: str
    weights: str
    specification_version: int
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    states: tuple[Feature, ...]
    program: Program
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    function: str = ""
    part: str = ""

    @property
    def main(self) -> Function:
        """The chosen function, `main` unless another was chosen."""
        return self.program.functions.get(self.function) or self.program.main

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the chosen function's outputs."""
        return self.main.block.outputs


@dataclass(frozen=True, eq=False)
class NonMaximumSuppression:
    """Core ML's own model of this name, a part of pipelines (NonMaximumSuppression.proto).

    Attributes:
        path: the pipeline's, with the part's number.
        inputs, outputs: confidences `[N, C]` and boxes `[N, 4]` by the names below; an output's
            first axis tells how many rows it may have.
        iou_threshold: boxes whose intersection over union with a better one is greater are left
            out.
        confidence_threshold: boxes are left out whose greatest confidence is lower.
        per_class: whether only boxes of one class suppress each other.
        labels: of the classes, texts or integers.
        confidence, coordinates: names of the two inputs, and of the two outputs.
        iou_input, confidence_threshold_input: optional inputs in place of the thresholds, or empty.
    """

    path: str
    specification_version: int
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    iou_threshold: float
    confidence_threshold: float
    per_class: bool
    labels: tuple[str | int, ...]
    confidence: tuple[str, str]
    coordinates: tuple[str, str]
    iou_input: str = ""
    confidence_threshold_input: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the result besides the inputs, by the specification's names."""
        return {
            "iouThreshold": self.iou_threshold,
            "confidenceThreshold": self.confidence_threshold,
            "perClass": self.per_class,
            "classLabels": self.labels,
        }


Part: TypeAlias = "MLModel | NonMaximumSuppression"


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Models run one after the other; values pass from one to the next by feature names.

    Attributes:
        path: the `.mlpackage` or `.mlmodelc` on disk.
        inputs, outputs: what Core ML declares of the whole.
        parts: the models in the order they run.
        names: of the parts; `part1`, `part2`, ... where the pipeline does not name them.
    """

    path: str
    specification_version: int
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    parts: tuple[Part, ...]
    names: tuple[str, ...] = ()

    @property
    def states(self) -> tuple[Feature, ...]:
        """None: pipelines pass no states on."""
        return ()

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs that are declared."""
        return tuple(feature.name for feature in self.outputs)

    @property
    def programs(self) -> Mapping[str, MLModel]:
        """The parts that are ML Programs, by name."""
        named = zip(self.names, self.parts, strict=True)
        return {name: part for name, part in named if isinstance(part, MLModel)}

    @property
    def suppressions(self) -> tuple[NonMaximumSuppression, ...]:
        """The parts that are suppressions and whose outputs are the pipeline's."""
        names = {*self.output_names}
        parts = (part for part in self.parts if isinstance(part, NonMaximumSuppression))
        return tuple(p for p in parts if {p.confidence[1], p.coordinates[1]} <= names)
