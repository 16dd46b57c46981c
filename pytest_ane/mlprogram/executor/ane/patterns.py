"""Constant operands by how the program makes them: codes with a scale, and W8A8 around them.

`quantize`, `dequantize` and a convolution 1x1, linear layer or matmul with an int8 weight are one
operation on the ANE, which multiplies codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor.ane.factors import Codes, Factors, IntegerCodes, LateScale
from pytest_ane.mlprogram.executor.ane.products import matrix
from pytest_ane.mlprogram.executor.ops.quantization import along
from pytest_ane.mlprogram.records import Argument, DType, Operation, Ref, TensorType, Value

OPERANDS = {"conv": ("weight",), "linear": ("weight",), "matmul": ("x", "y")}
"""Parameters that may be constant factors."""
_OTHER = {"weight": "x", "x": "y", "y": "x"}
Reader = Callable[[Operation, Sequence[str]], Mapping[str, Any]]
"""Parameters of a constant operation by name, of those named that it has."""


class Patterns:
    """Looks up how a program makes operands.

    Args:
        makers: operations by the names of their results.
        scale_after: whether scales of weights are taken to come after accumulation.
    """

    def __init__(self, makers: Mapping[str, Operation], *, scale_after: bool = False) -> None:
        self._makers, self._scale_after = makers, scale_after

    def maker(self, op: Operation, key: str) -> Operation | None:
        """The operation that yields a parameter."""
        only = _only(op, key)
        return self._makers.get(only.name) if isinstance(only, Ref) else None

    def dtype(self, op: Operation, key: str) -> DType | None:
        """The type of a parameter's elements; None for one of the program's inputs."""
        maker, stored = self.maker(op, key), _only(op, key)
        kind = stored.type if isinstance(stored, Value) else maker and maker.outputs[0].type
        return kind.dtype if isinstance(kind, TensorType) else None

    def factors(
        self, op: Operation, key: str, constants: Mapping[str, Any], read: Reader
    ) -> Factors:
        """A constant operand as factors, which are codes where the program says so."""
        plain = _plain(op, key, constants)
        maker = self.maker(op, key)
        scale = None if maker is None else _scale(maker, plain.shape, read)
        if maker is None or scale is None:
            return plain
        layout = (plain.source, plain.width, plain.groups, plain.transposed)
        codes: Codes | None = None
        is_int8 = DType.INT8 in (self.dtype(maker, "data"), self.dtype(maker, "quantized_data"))
        if is_int8 and (step := self._step(op, _OTHER[key], read)) is not None:
            codes = IntegerCodes(*layout, scale=scale, step=step[0], zero_point=step[1])
        elif self._scale_after:
            codes = LateScale(*layout, scale=scale)
        return codes if codes is not None and codes.is_exact else replace(plain, scale=scale)

    def _step(self, op: Operation, key: str, read: Reader) -> tuple[float, int] | None:
        """Scale and zero point of an operand that is 8-bit codes, all with one scale."""
        dequantize = self.maker(op, key)
        quantize = self.maker(dequantize, "input") if dequantize else None
        if dequantize is None or (dequantize.op, quantize and quantize.op) != _QDQ:
            return None
        values = read(dequantize, ("scale", "zero_point"))
        if np.ndim(values.get("scale", ())) or np.ndim(values.get("zero_point", 0)):
            return None
        return float(values["scale"]), int(values.get("zero_point", 0))


_QDQ = ("dequantize", "quantize")


def _only(op: Operation, key: str) -> Argument | None:
    """A parameter that is one value, among inputs or attributes."""
    if key in op.attributes:
        return op.attributes[key]
    arguments = op.inputs.get(key, ())
    return arguments[0] if len(arguments) == 1 else None


def _plain(op: Operation, key: str, constants: Mapping[str, Any]) -> Factors:
    """A constant operand as fp16 numbers."""
    source = constants[key]
    if key == "weight":
        width = math.prod(source.shape[1:])
        return Factors(source, width, int(constants.get("groups", 1)))
    return matrix(source, transposed=bool(constants.get(f"transpose_{key}")) != (key == "y"))


def _scale(maker: Operation, shape: tuple[int, ...], read: Reader) -> Array | None:
    """Scale of a weight of whole numbers, which broadcasts to its shape; None for any other."""
    values = read(maker, ("scale", "offset", "zero_point", "axis"))
    if maker.op == "constexpr_blockwise_shift_scale" and "offset" not in values:
        scale = np.asarray(values["scale"])
        return scale if all(n in (1, m) for n, m in zip(scale.shape, shape, strict=True)) else None
    if maker.op == "constexpr_affine_dequantize" and not np.any(values["zero_point"]):
        return np.asarray(along(values["scale"], shape, values.get("axis", 0), "scale"))
    return None
