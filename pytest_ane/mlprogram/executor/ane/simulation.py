"""The executor's operations in the ANE's arithmetic, and by which rules they were computed.

Constant operands count by how the program makes them: `quantize`, `dequantize` and a convolution
1x1, linear layer or matmul with an int8 weight are one operation on the ANE, which multiplies
codes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.ane import REGISTERED, Grade, Rule
from pytest_ane.mlprogram.executor.ane import _activations as _rules  # noqa: F401 - registers
from pytest_ane.mlprogram.executor.ane.accumulator import Sums
from pytest_ane.mlprogram.executor.ane.products import (
    Codes,
    Factors,
    IntegerCodes,
    LateScale,
    matrix,
)
from pytest_ane.mlprogram.executor.dtypes import load_kernels
from pytest_ane.mlprogram.executor.ops.constexpr import along
from pytest_ane.mlprogram.executor.weights import HalfWeight
from pytest_ane.mlprogram.records import DType, Operation, Ref, TensorType, Value

OPERANDS = {"conv": ("weight",), "linear": ("weight",), "matmul": ("x", "y")}
"""Parameters that may be constant factors."""
_OTHER = {"weight": "x", "x": "y", "y": "x"}
Reader = Callable[[Operation, Sequence[str]], Mapping[str, Any]]
"""Parameters of a constant operation by name, of those named that it has."""


def _plain(op: Operation, key: str, constants: Mapping[str, Any]) -> Factors:
    source = constants[key]
    if key == "weight":
        return Factors(source, math.prod(source.shape[1:]), int(constants.get("groups", 1)))
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


def rules() -> Mapping[str, Rule]:
    """All rules by operation; what is not among them is of unknown arithmetic."""
    return REGISTERED


@dataclass(frozen=True)
class Computed:
    """A run of an operation by its rule.

    Attributes:
        op: the operation.
        parameters: by MIL's names, constant ones too.
        result: fp16 numbers as float32, or sums.
        typed: its function as the program's types say.
    """

    op: Operation
    parameters: Mapping[str, Any]
    result: Any
    typed: Callable[..., Any]


class Simulation:
    """Binds a program's operations to the rules of the ANE, and counts what ran.

    Args:
        makers: operations by the names of their results.
        scale_after: whether scales of weights are taken to come after accumulation.

    Attributes:
        watch: called after each run of an operation that has a rule, where there is anybody to.
    """

    def __init__(self, makers: Mapping[str, Operation], *, scale_after: bool = False) -> None:
        if load_kernels() is None:
            raise ExecutionError(
                "arithmetic 'ane' needs a processor that converts fp16 numbers (f16c, or arm64); "
                "use arithmetic 'typed'."
            )
        self.watch: Callable[[Computed], None] | None = None
        self._makers, self._scale_after = makers, scale_after
        self._operations, self._products = Counter[str](), Counter[str]()
        self._infinite, self._may_overflow = Counter[str](), Counter[str]()
        self._unknown: set[str] = set()

    @property
    def shares(self) -> RuleShares:
        """By which rules all runs so far computed."""
        return RuleShares(
            dict(self._operations), dict(self._products), tuple(sorted(self._unknown)),
            dict(self._infinite), dict(self._may_overflow),
        )  # fmt: skip

    def _add(self, op: str, grade: Grade, products: int) -> None:
        self._operations[grade.value] += 1
        if products:
            self._products[grade.value] += products
        if grade is Grade.UNKNOWN:
            self._unknown.add(op)

    def bind(
        self, op: Operation, typed: Callable[..., Any], constants: dict[str, Any], read: Reader
    ) -> Callable[..., Any]:
        """The function that computes an operation, and counts it."""
        rule = rules().get(op.op) if self._is_fp16(op) else None
        if rule is None:
            return self._counted(op.op, typed)
        grade = rule.grade
        # A bias that is computed is not among the constants.
        has_bias = "bias" in op.inputs and bool(np.any(constants.get("bias", 1)))
        for key in OPERANDS.get(op.op, ()):
            if key in constants and constants[key].ndim > 1:
                constants[key] = factors = self._factors(op, key, constants, read)
                grade = factors.grade(self._grade(op, key, grade), has_bias)
        return self._ruled(op, rule, grade, typed)

    def _maker(self, op: Operation, key: str) -> Operation | None:
        only = op.only(key)
        return self._makers.get(only.name) if isinstance(only, Ref) else None

    def _dtype(self, op: Operation, key: str) -> DType | None:
        """The type of a parameter's elements; None for one of the program's inputs."""
        maker, stored = self._maker(op, key), op.only(key)
        kind = stored.type if isinstance(stored, Value) else maker and maker.outputs[0].type
        return kind.dtype if isinstance(kind, TensorType) else None

    def _factors(
        self, op: Operation, key: str, constants: Mapping[str, Any], read: Reader
    ) -> Factors:
        """A constant operand as factors, which are codes where the program says so."""
        plain = _plain(op, key, constants)
        maker = self._maker(op, key)
        scale = None if maker is None else _scale(maker, plain.shape, read)
        if maker is None or scale is None:
            return plain
        layout = (plain.source, plain.width, plain.groups, plain.transposed)
        codes: Codes | None = None
        is_int8 = DType.INT8 in (self._dtype(maker, "data"), self._dtype(maker, "quantized_data"))
        if is_int8 and (step := self._step(op, _OTHER[key], read)) is not None:
            codes = IntegerCodes(*layout, scale=scale, step=step[0], zero_point=step[1])
        elif self._scale_after:
            codes = LateScale(*layout, scale=scale)
        return codes if codes is not None and codes.is_exact else replace(plain, scale=scale)

    def _step(self, op: Operation, key: str, read: Reader) -> tuple[float, int] | None:
        """Scale and zero point of an operand that is 8-bit codes, all with one scale."""
        dequantize = self._maker(op, key)
        quantize = self._maker(dequantize, "input") if dequantize else None
        if not (dequantize and quantize):
            return None
        if (dequantize.op, quantize.op) != ("dequantize", "quantize"):
            return None
        values = read(dequantize, ("scale", "zero_point"))
        if np.ndim(values.get("scale", ())) or np.ndim(values.get("zero_point", 0)):
            return None
        return float(values["scale"]), int(values.get("zero_point", 0))

    def _is_fp16(self, op: Operation) -> bool:
        if op.op == "quantize":
            return self._dtype(op, "scale") is DType.FP16
        kinds = [out.type for out in op.outputs]
        return all(isinstance(kind, TensorType) and kind.dtype is DType.FP16 for kind in kinds)

    def _grade(self, op: Operation, key: str, usual: Grade) -> Grade:
        """Of sums of fp16 numbers; inferred for weights that are compressed."""
        maker = self._maker(op, key)
        is_packed = maker is not None and maker.op.startswith("constexpr_")
        return Grade.INFERRED if is_packed and usual is Grade.RECORDED else usual

    def _counted(self, op: str, typed: Callable[..., Any]) -> Callable[..., Any]:

        def compute(**parameters: Any) -> Any:
            result = typed(**parameters)
            self._add(op, Grade.UNKNOWN, multiplications(op, parameters, result))
            return result

        return compute

    def _ruled(
        self, op: Operation, rule: Rule, grade: Grade, typed: Callable[..., Any]
    ) -> Callable[..., Any]:
        unknown = self._counted(op.op, typed)

        def compute(**parameters: Any) -> Any:
            result = rule.compute(**parameters)
            if result is None:
                return unknown(**{key: _undone(value) for key, value in parameters.items()})
            if self.watch is not None:
                self.watch(Computed(op, parameters, result, typed))
            if not isinstance(result, Sums):
                self._add(op.op, grade, 0)
                return result
            self._add(op.op, grade, result.products)
            if result.may_overflow is not None:
                self._may_overflow[op.name] += int(result.may_overflow.sum())
            if result.infinite:
                self._infinite[op.name] += result.infinite
            return result.values

        return compute


def _undone(value: Any) -> Any:
    if not isinstance(value, Factors):
        return value
    return np.asarray(value.source) if isinstance(value.source, HalfWeight) else value.source


def multiplications(op: str, parameters: Mapping[str, Any], result: Any) -> int:
    """Multiply-accumulates of an operation that sums products; 0 for any other."""
    size = int(np.size(result)) if isinstance(result, (np.ndarray, np.generic)) else 0
    if op in ("conv", "linear"):
        return size * int(math.prod(parameters["weight"].shape[1:]))
    if op == "matmul":
        return size * int(parameters["x"].shape[-2 if parameters.get("transpose_x") else -1])
    if op == "conv_transpose":
        return int(np.size(parameters["x"])) * int(math.prod(parameters["weight"].shape[1:]))
    if op == "einsum":
        return size * int(parameters["values"][0].shape[-1])
    if op == "scaled_dot_product_attention":
        query, key = parameters["query"], parameters["key"]
        scores = int(np.size(query)) * int(key.shape[-2])
        return scores + size * int(key.shape[-2])
    return 0
