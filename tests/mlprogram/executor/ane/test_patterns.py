"""Weights of codes with a scale, as coremltools writes them: W8A8, and late scales."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session, open_session
from pytest_ane.mlprogram.executor.ane.fp16 import r16
from pytest_ane.mlprogram.executor.ane.grades import Grade
from pytest_ane.mlprogram.executor.ane.integers import quantize
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.programs import build, session

RNG = np.random.default_rng(0)
OUTPUTS, INPUTS = 6, 40
CODES = RNG.integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
SCALES = np.array([[2.0**-7], [2.0**-3], [0.01], [0.3], [1.0], [7e-4]], np.float16)
X = (RNG.standard_normal((3, INPUTS)) * 20).astype(np.float16).astype(np.float32)
BIAS = np.arange(OUTPUTS, dtype=np.float16)


def weight(mb: Any, codes: Any, scale: Any, stored: str) -> Any:
    """A weight of codes in one of coremltools' operations."""
    if stored == "blockwise":
        return mb.constexpr_blockwise_shift_scale(data=codes, scale=scale)
    axis = int(np.argmax(scale.shape))
    zero = np.zeros(scale.size, np.int8)
    return mb.constexpr_affine_dequantize(
        quantized_data=codes, zero_point=zero, scale=scale.reshape(-1), axis=np.int32(axis)
    )


def package(
    folder: Path, op: str, *, step: float = 0.0, zero: int = 0, scale: Any = SCALES,
    codes: Any = CODES, bias: bool = False, stored: str = "blockwise", per_axis: bool = False,
) -> Path:  # fmt: skip
    """`x [3, K]` quantized by `step` and dequantized, or as it is, times a weight of codes."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    codes = np.asarray(codes)

    def body(x: Any) -> Any:
        if op == "conv":
            x = mb.expand_dims(x=x, axes=(2, 3))
        if step:
            scales = np.full(INPUTS, step, np.float16) if per_axis else np.float16(step)
            zeros = np.full(INPUTS, zero, np.int8) if per_axis else np.int8(zero)
            axis = {"axis": np.int32(1)} if per_axis else {}
            q = mb.quantize(input=x, scale=scales, zero_point=zeros, output_dtype="int8", **axis)
            x = mb.dequantize(input=q, scale=scales, zero_point=zeros, **axis)
        added = {"bias": BIAS} if bias else {}
        if op == "linear":
            return mb.linear(x=x, weight=weight(mb, codes, scale, stored), name="y", **added)
        if op == "matmul":
            held = weight(mb, codes.T.copy(), scale.T.copy(), stored)
            return mb.matmul(x=x, y=held, name="y")
        if op == "matmul_transposed":
            return mb.matmul(x=x, y=weight(mb, codes, scale, stored), transpose_y=True, name="y")
        if op == "left":
            held = weight(mb, codes, scale, stored)
            return mb.matmul(x=held, y=x, transpose_y=True, name="y")
        held = weight(mb, codes[..., None, None], scale[..., None, None], stored)
        y = mb.conv(x=x, weight=held, **added)
        return mb.squeeze(x=y, axes=(2, 3), name="y")

    spec = mb.TensorSpec((3, INPUTS), types.fp16)
    return build(folder / "model.mlpackage", [spec], body)


def run(path: Path, x: Any = X, **options: Any) -> tuple[Any, Session]:
    made = session(path, arithmetic="ane", **options)
    return made.predict({"x": x})["y"], made


def integer_sums(step: float, zero: int = 0, codes: Any = CODES) -> Any:
    """Sums of products of codes `[3, O]`."""
    q = quantize(X, step, "int8", zero).astype(np.int64) - zero
    return q @ codes.astype(np.int64).T


OPS = ["linear", "conv", "matmul", "matmul_transposed", "left"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("stored", ["blockwise", "affine"])
def test_8_bit_activations_and_weights(op: str, stored: str, tmp_path: Path) -> None:
    """`r16(S s_x s_w)`, which sums of fp16 products are not."""
    y, made = run(package(tmp_path, op, step=0.25, zero=3, stored=stored))
    expected = r16(integer_sums(0.25, 3) * 0.25 * SCALES[:, 0].astype(np.float64))
    np.testing.assert_array_equal(y.T if op == "left" else y, expected)
    assert made.tally is not None
    assert made.tally.products == {Grade.INFERRED: y.size * INPUTS}


@pytest.mark.slow
def test_only_powers_of_two_were_recorded(tmp_path: Path) -> None:
    grades = []
    cases: list[dict[str, Any]] = [
        {"step": 0.25}, {"step": 0.3}, {"step": 0.25, "bias": True}, {"step": 0.25, "zero": 1}
    ]  # fmt: skip
    for i, options in enumerate(cases):
        path = package(
            tmp_path / str(i), "linear", scale=np.full((6, 1), 0.5, np.float16), **options
        )
        _, made = run(path)
        assert made.tally is not None
        grades.append(made.tally.kinds["linear"])
    assert grades == [Grade.RECORDED, *[Grade.INFERRED] * 3]


def test_sums_of_codes_may_exceed_the_limit_of_fixed_point(tmp_path: Path) -> None:
    """40 products of 127 and 127 with scales of 1/4: 40322.5 is beyond 32768."""
    path = package(
        tmp_path, "linear", step=0.25, codes=np.full((6, INPUTS), 127, np.int8),
        scale=np.full((6, 1), 0.25, np.float16),
    )  # fmt: skip
    y, _ = run(path, np.full((3, INPUTS), 127 / 4, np.float32))
    assert y.tolist() == [[40320.0] * 6] * 3


def test_a_bias_is_added_before_rounding(tmp_path: Path) -> None:
    for op in ("linear", "conv"):
        y, _ = run(package(tmp_path / op, op, step=0.25, bias=True))
        exact = integer_sums(0.25) * 0.25 * SCALES[:, 0].astype(np.float64)
        np.testing.assert_array_equal(y, r16(exact + BIAS))


@pytest.mark.parametrize(
    "options",
    [
        {"step": 0.25, "per_axis": True},
        {"step": 0.25, "scale": np.repeat(SCALES, 2, axis=1)},
        {"step": 0.0},
    ],
)
def test_other_patterns_are_sums_of_fp16(options: dict[str, Any], tmp_path: Path) -> None:
    """A scale for each channel of the activations, for blocks of the weight, or no codes."""
    x = np.rint(X)
    y, made = run(package(tmp_path, "linear", **options), x)
    if options["step"]:
        x = quantize(x, 0.25, "int8") * np.float32(0.25)
    held = (CODES * SCALES).astype(np.float16)
    product = held[None].astype(np.float64) * x[:, None] * 2.0**16
    total = np.copysign(np.floor(np.abs(product) + 0.5), product).sum(-1)
    np.testing.assert_array_equal(y, r16(total / 2**16))
    assert made.tally is not None
    assert made.tally.kinds["linear"] is Grade.INFERRED


def test_a_weight_in_its_place_is_no_codes(tmp_path: Path) -> None:
    """Overridden constants, as `blame` does, are multiplied as they are."""
    model = read_model(package(tmp_path, "linear", step=0.25))
    maker = next(op for op in model.main.walk() if op.op.startswith("constexpr_"))
    other = RNG.standard_normal((OUTPUTS, INPUTS)).astype(np.float16).astype(np.float32)
    made = Session(model, overrides={maker: other}, arithmetic="ane")
    y = made.predict({"x": X})["y"]
    q = quantize(X, 0.25, "int8") * 0.25
    np.testing.assert_allclose(y, q @ other.T, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("op", OPS)
def test_scales_after_accumulation(op: str, tmp_path: Path) -> None:
    """`r16(r16(sum of codes * x) * scale)`; the sum of codes is exact here."""
    path = package(tmp_path, op)
    x = np.rint(X)
    y, made = run(path, x, scale_after=True)
    total = r16(x.astype(np.float64) @ CODES.T)
    expected = r16(total.astype(np.float64) * SCALES[:, 0])
    y = y.T if op == "left" else y
    np.testing.assert_array_equal(y, expected)
    assert not np.array_equal(y, r16((x.astype(np.float64) @ CODES.T) * SCALES[:, 0]))
    assert made.tally is not None
    assert made.tally.kinds[op.partition("_")[0] if op != "left" else "matmul"] is Grade.INFERRED


def test_late_scales_overflow_and_are_off_by_default(tmp_path: Path) -> None:
    """40 * 127 * 8 = 40640 is beyond 32768, though only 40.6 once scaled."""
    scale = np.full((6, 1), 2.0**-10, np.float16)
    codes = np.full((6, INPUTS), 127, np.int8)
    path = package(tmp_path, "linear", codes=codes, scale=scale, bias=True)
    x = np.full((3, INPUTS), 8, np.float32)
    assert np.isfinite(run(path, x)[0]).all()
    y, made = run(path, x, scale_after=True)
    assert np.isinf(y).all()
    assert made.tally is not None
    assert dict(made.tally.infinite) == {"y": y.size}
    y, _ = run(path, np.ones((3, INPUTS), np.float32), scale_after=True)
    assert y[0].tolist() == [math.floor(127 * 40 / 4 + 0.5) * 4 / 1024 + b for b in range(6)]


def test_int4_weights(tmp_path: Path) -> None:
    from coremltools.converters.mil.mil import types

    codes = (CODES // 16).astype(types.np_int4_dtype)
    y, _ = run(package(tmp_path, "conv", codes=codes), scale_after=True)
    total = X.astype(np.float64) @ (CODES // 16).T
    np.testing.assert_allclose(y, total * SCALES[:, 0], rtol=2e-3, atol=2e-3)


def test_the_switch_is_of_this_arithmetic(tmp_path: Path) -> None:
    path = package(tmp_path, "linear")
    with pytest.raises(ExecutionError, match="needs arithmetic 'ane'"):
        open_session(read_model(path), scale_after=True)
    opened = open_session(read_model(path), arithmetic="ane", scale_after=True)
    np.testing.assert_array_equal(opened.predict({"x": X})["y"], run(path, scale_after=True)[0])
