"""Small programs that meet a hazard of the ANE's arithmetic, and their rewrites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.gates.hazards import Hazards, measure
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Operation, TensorType
from pytest_ane.probes.cases import package_case
from tests.gates.placement.programs import const, function, half, model, op, value

Inputs = Mapping[str, Array]
KEYS = 4096
HALF = np.float16
POWER = HALF(2**-4)


def program(inputs: Inputs, *operations: Operation) -> MLModel:
    """A program of these inputs, in fp16, whose last operation is the output."""
    kinds = {name: TensorType(DType.FP16, x.shape) for name, x in inputs.items()}
    features = tuple(Feature(name, DType.FP16, x.shape) for name, x in inputs.items())
    out = operations[-1].outputs[0]
    made = model(function(*operations, inputs=kinds), features=features)
    assert isinstance(out.type, TensorType)
    shape = tuple(n or 1 for n in out.type.shape)
    return replace(made, outputs=(Feature(out.name, DType.FP16, shape),))


def hazards(made: MLModel, inputs: Inputs, kind: str = "gaussian") -> Hazards:
    """What a program meets on a probe called `probe`."""
    case = package_case(kind, "probe", [inputs], [])
    return measure(CpuRunner(Session(made, arithmetic="ane")), [case], {})


def exact(made: MLModel, inputs: Inputs) -> Array:
    """The program's output in float32."""
    (output,) = Session(made, precision="float32").predict(inputs).values()
    return np.asarray(output)


def normal(seed: int, *shape: int, deviation: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * deviation).astype(HALF)


def conv(x: Array, *weight: Operation, early: bool) -> tuple[MLModel, Inputs]:
    """A convolution to 8 channels, of the input or of a sixteenth of it."""
    inputs, result = {"x": x}, half(1, 8, 1, 4)
    if not early:
        return program(inputs, *weight, op("conv", "down", result, x="x", weight="w")), inputs
    small = op("mul", "small", half(*x.shape), x="x", y=value(POWER))
    down = op("conv", "down", result, x="small", weight="w")
    return program(
        inputs, *weight, small, down, op("mul", "y", result, x="down", y=value(1 / POWER))
    ), inputs


def overflow(*, cancels: bool = False, early: bool) -> tuple[MLModel, Inputs]:
    """A down-projection of large inputs, 40,000; or half of it, and the same less it."""
    width = 128 if cancels else 64
    weight = np.full((8, width, 1, 1), 62.5, HALF)
    weight[:, 64:] *= HALF(-1)
    return conv(np.full((1, width, 1, 4), 10, HALF), const("w", weight), early=early)


def query(*, folded: bool) -> tuple[MLModel, Inputs]:
    """Scores whose 1/sqrt(d), 1/8, is folded into the query's weights; or multiplied by it."""
    weight = normal(1, 64, 32, deviation=2**-5)
    scale = HALF(1 / 8)
    inputs = {"x": normal(2, 16, 32, deviation=2**-5), "k": normal(3, 64, 16, deviation=8)}
    scores = op("matmul", "scores", half(16, 16), x="q", y="k")
    linear = op("linear", "q", half(16, 64), x="x", weight="w")
    if folded:
        return program(inputs, const("w", weight * scale), linear, scores), inputs
    last = op("mul", "y", half(16, 16), x="scores", y=value(scale))
    return program(inputs, const("w", weight), linear, scores, last), inputs


def attention(*, late: bool) -> tuple[MLModel, Inputs]:
    """Diffuse attention over 4,096 keys, normalized before or after the product with V."""
    inputs = {"s": normal(4, 4, KEYS), "v": normal(5, KEYS, 8, deviation=0.3)}
    wide, narrow, one = half(4, KEYS), half(4, 8), half(4, 1)
    along = {"axes": value([-1]), "keep_dims": value(np.True_)}
    if not late:
        return program(
            inputs,
            op("softmax", "p", wide, x="s", axis=value(-1)),
            op("matmul", "mixed", narrow, x="p", y="v"),
        ), inputs
    return program(
        inputs,
        op("reduce_max", "m", one, x="s", **along),
        op("sub", "low", wide, x="s", y="m"),
        op("exp", "e", wide, x="low"),
        op("matmul", "sums", narrow, x="e", y="v"),
        op("reduce_sum", "total", one, x="e", **along),
        op("real_div", "mixed", narrow, x="sums", y="total"),
    ), inputs


def gated(*, by_table: bool) -> tuple[MLModel, Inputs]:
    """SiLU by its own table, or of a hyperbolic tangent."""
    inputs = {"x": normal(6, 64, 64, deviation=0.25)}
    kind = half(64, 64)
    if by_table:
        return program(inputs, op("silu", "act", kind, x="x")), inputs
    return program(
        inputs,
        op("mul", "a", kind, x="x", y=value(HALF(0.5))),
        op("tanh", "b", kind, x="a"),
        op("mul", "c", kind, x="b", y=value(HALF(0.5))),
        op("add", "d", kind, x="c", y=value(HALF(0.5))),
        op("mul", "act", kind, x="x", y="d"),
    ), inputs


def softplus(form: str) -> tuple[MLModel, Inputs]:
    """As one operation, composed, or stable: `relu(x) + log(1 + exp(-|x|))`.

    Where it is `hidden`, the sum has an attribute by the name of what it takes.
    """
    inputs = {"x": np.array([[-3, 0.5, 10.5]], HALF)}
    kind, stable = half(1, 3), form == "stable"
    if form == "one":
        return program(inputs, op("softplus", "y", kind, x="x")), inputs
    tail = (
        op("exp", "e", kind, x="low" if stable else "x"),
        op("add", "more", kind, x="e", y=value(HALF(1))),
        op("log", "l" if stable else "y", kind, x="more"),
    )
    if form == "hidden":
        named = replace(tail[1], attributes={"x": value(HALF(1))})
        return program(inputs, tail[0], named, tail[2]), inputs
    head = (op("abs", "size", kind, x="x"), op("mul", "low", kind, x="size", y=value(HALF(-1))))
    end = (op("relu", "r", kind, x="x"), op("add", "y", kind, x="r", y="l"))
    return program(inputs, *((*head, *tail, *end) if stable else tail)), inputs


def logsumexp(form: str) -> tuple[MLModel, Inputs]:
    """As one operation, composed, or with the maximum taken out."""
    inputs = {"x": np.full((2, 32), 8, HALF)}
    wide, kind, stable = half(2, 32), half(2, 1), form == "stable"
    along = {"axes": value([-1]), "keep_dims": value(np.True_)}
    if form == "one":
        return program(inputs, op("reduce_log_sum_exp", "y", kind, x="x", **along)), inputs
    tail = (
        op("exp", "e", wide, x="low" if stable else "x"),
        op("reduce_sum", "total", kind, x="e", **along),
        op("log", "l" if stable else "y", kind, x="total"),
    )
    head = (op("reduce_max", "m", kind, x="x", **along), op("sub", "low", wide, x="x", y="m"))
    end = op("add", "y", kind, x="l", y="m")
    return program(inputs, *((*head, *tail, end) if stable else tail)), inputs


def masked(hidden: float) -> tuple[MLModel, Inputs]:
    """Scores of which half are hidden by a mask that is added."""
    mask = np.zeros((1, 8), HALF)
    mask[:, 4:] = hidden
    inputs = {"s": normal(7, 4, 8), "mask": mask}
    return program(
        inputs,
        op("add", "hidden", half(4, 8), x="s", y="mask"),
        op("softmax", "p", half(4, 8), x="hidden", axis=value(-1)),
    ), inputs


def integers(*, early: bool) -> tuple[MLModel, Inputs]:
    """A sum of int8 codes that is small once it is scaled; the input may be scaled first."""
    attributes = {
        "quantized_data": value(np.full((8, 64, 1, 1), 100, np.int8)),
        "scale": value(np.full(8, 2**-7, HALF)),
        "zero_point": value(np.zeros(8, np.int8)),
        "axis": value(0),
    }
    weight = op("constexpr_affine_dequantize", "w", half(8, 64, 1, 1))
    weight = replace(weight, attributes=attributes)
    return conv(np.full((1, 64, 1, 4), 10, HALF), weight, early=early)
