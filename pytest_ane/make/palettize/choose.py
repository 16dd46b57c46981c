"""Which weights are palettized, and along which axis: the choices of coremltools 9.0.

Source: `need_compress_const` in optimize/coreml/_quantization_passes.py and
`select_input_output_channel_axis` in optimize/_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.package import read_package
from pytest_ane.mlprogram.records import (
    Blob,
    DType,
    Function,
    MLModel,
    Operation,
    Ref,
    TensorType,
    Value,
)
from pytest_ane.mlprogram.weights import constant_name


@dataclass(frozen=True)
class Grouping:
    """How a weight is palettized: `groups` of channels along `axis`, a palette each."""

    method: Palettize
    groups: int
    axis: int


class Uses:
    """The operations that take each of a function's values, by name, and the parameter it is."""

    def __init__(self, function: Function) -> None:
        self.ops: dict[str, list[tuple[Operation, str]]] = {}
        self.constants: dict[str, Value] = {}
        self.results = {*function.block.outputs}
        for op in function.walk():
            self.results.update(name for block in op.blocks for name in block.outputs)
            if op.op == "const":
                self.constants[op.name] = op.attributes["val"]
            for parameter, arguments in op.inputs.items():
                for argument in arguments:
                    if isinstance(argument, Ref):
                        self.ops.setdefault(argument.name, []).append((op, parameter))

    def channels(self, name: str, rank: int) -> int | None:
        """The axis of a weight's output channels; None where its uses do not agree on the axes."""
        axes = {self._axes(*use, rank) for use in self.ops[name]}
        return axes.pop()[0] if len(axes) == 1 else None

    def _axes(self, op: Operation, parameter: str, rank: int) -> tuple[int, int]:
        """Axes of output and input channels."""
        if op.op == "conv_transpose":
            return 1, 0
        if op.op == "matmul":
            last = (rank - 2, rank - 1)
            transposed = self._flag(op, f"transpose_{parameter}")
            return last if transposed == (parameter == "y") else last[::-1]
        return 0, 1

    def _flag(self, op: Operation, parameter: str) -> bool:
        for argument in op.inputs.get(parameter, ()):
            value = self.constants.get(argument.name) if isinstance(argument, Ref) else argument
            return value is not None and bool(value.data)
        return False


def constants(package: Path) -> dict[str, frozenset[str]]:
    """Names of a package's constants, and which kinds of operations take each."""
    model = read_package(package, weights=False)
    takers: dict[str, frozenset[str]] = {}
    for function in model.program.functions.values() if isinstance(model, MLModel) else ():
        uses = Uses(function)
        for op in function.walk():
            if op.op == "const":
                kinds = frozenset(taker.op for taker, _ in uses.ops.get(op.name, ()))
                takers[constant_name(op)] = takers.get(constant_name(op), frozenset()) | kinds
    return takers


def choose(op: Operation, settings: Mapping[str, Palettize], uses: Uses) -> Grouping | str | None:
    """How a constant is palettized; a reason if it cannot be; None if no setting names it."""
    kind, method = op.outputs[0].type, settings.get(constant_name(op))
    if method is None or not isinstance(kind, TensorType):
        return None
    shape = tuple(int(d or 0) for d in kind.shape)
    stored = isinstance(op.attributes["val"].data, Blob)
    if not stored or math.prod(shape) <= method.weight_threshold:
        return None
    if kind.dtype is DType.FP32:
        return "is of fp32, which only engine = 'coremltools' palettizes"
    if kind.dtype is not DType.FP16:
        return None
    if len(shape) < 2:
        return "is a vector, which Core ML takes uncompressed only"
    if op.name in uses.results or op.name not in uses.ops:
        return "is a result of the program"
    if any(taker.op.startswith("constexpr_") for taker, _ in uses.ops[op.name]):
        return "is part of a compressed weight"
    axis = uses.channels(op.name, len(shape))
    if axis is None:
        return "is used along different axes"
    if method.granularity == "per_tensor":
        return Grouping(method, 1, 0)
    if shape[axis] % method.group_size:
        return f"{shape[axis]} output channels are not divisible by group_size {method.group_size}"
    return Grouping(method, shape[axis] // method.group_size, axis)
