"""A program in the ANE's arithmetic, and which operands are codes."""

from __future__ import annotations

import math
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session, open_session
from pytest_ane.mlprogram.executor._registry import lookup
from pytest_ane.mlprogram.executor.ane import Grade
from pytest_ane.mlprogram.executor.ane._fp16 import r16
from pytest_ane.mlprogram.executor.ane.products import quantize
from pytest_ane.mlprogram.executor.ane.simulation import rules
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.programs import build, session
from tests.mlprogram.packages import Program

HALF = 65552


def program(kind: str, shape: tuple[int, ...], dtype: str = "FLOAT16", **inputs: Any) -> Program:
    """One operation on `x`."""
    made = Program()
    made.input("x", shape, dtype, kind=HALF if dtype == "FLOAT16" else 65568)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            made.blob(f"{name}_0", "FLOAT16", value.shape, value.astype(np.float16).tobytes())
        else:
            made.const(f"{name}_0", value, "FLOAT16")
    names = {name: f"{name}_0" for name in inputs}
    made.op(kind, "y", dtype, shape, x="x", **names)
    made.output("y", HALF if dtype == "FLOAT16" else 65568)
    return made


def run(made: Program, folder: Path, x: Any, **options: Any) -> tuple[Any, Any]:
    session = Session(read_model(made.save(folder)), **options)
    return session.predict({"x": np.array(x, np.float32)})["y"], session


@pytest.mark.parametrize("op", sorted(rules()))
def test_rules_take_what_the_typed_operation_takes(op: str) -> None:
    typed = signature(lookup(op, "iOS18").compute)
    assert list(signature(rules()[op].compute).parameters) == list(typed.parameters)


def test_grades() -> None:
    grades = [rules()[op].grade for op in ("conv", "silu", "softplus")]
    assert [*grades, Grade.UNKNOWN] == list(Grade)
    assert "softmax" not in rules()


def test_ties_are_rounded_as_the_ane_does(tmp_path: Path) -> None:
    made = program("add", (1, 2), y=1.0)
    typed, plain = run(made, tmp_path / "a", [[2048, 2050]])
    ane, session = run(made, tmp_path / "b", [[2048, 2050]], arithmetic="ane")
    assert typed.tolist() == [[2048, 2052]]
    assert ane.tolist() == [[2050, 2052]]
    assert plain.rule_shares is None
    assert session.rule_shares.operations == {"recorded": 1}


def test_sums_are_counted_with_their_overflow(tmp_path: Path) -> None:
    weight = np.array([[1, 1], [1, -1]])
    made = program("linear", (1, 2), weight=weight)
    ane, session = run(made, tmp_path, [[20000, 20000]], arithmetic="ane")
    assert ane.tolist() == [[np.inf, 0]]
    assert session.rule_shares == RuleShares({"recorded": 1}, {"recorded": 4}, infinite={"y": 1})


@pytest.mark.parametrize("size", [2, 256])
def test_weights_held_in_fp16_or_not(size: int, tmp_path: Path) -> None:
    """A product of 2^-9 and 2^-9 is dropped, in each of the forms that a weight is held in."""
    made = program("linear", (1, size), weight=np.full((size, size), 2.0**-9))
    x = np.full((1, size), 2.0**-9)
    typed, _ = run(made, tmp_path / "a", x)
    held, _ = run(made, tmp_path / "b", x, arithmetic="ane")
    streamed, _ = run(made, tmp_path / "c", x, arithmetic="ane", memory_budget=0)
    assert typed.all()
    assert not held.any()
    assert not streamed.any()


def test_what_has_no_rule_is_typed_and_named(tmp_path: Path) -> None:
    made = program("softsign", (1, 2))
    typed, _ = run(made, tmp_path / "a", [[1, -3]])
    ane, session = run(made, tmp_path / "b", [[1, -3]], arithmetic="ane")
    assert ane.tolist() == typed.tolist()
    assert session.rule_shares == RuleShares({"unknown": 1}, unknown=("softsign",))
    assert session.rule_shares.shares_of_operations["unknown"] == 1


def test_a_larger_kernel_is_typed(tmp_path: Path) -> None:
    made = Program()
    made.input("x", (1, 1, 1, 3), "FLOAT16", kind=HALF)
    made.blob("w", "FLOAT16", (1, 1, 1, 3), np.ones(3, np.float16).tobytes())
    made.op("conv", "y", "FLOAT16", (1, 1, 1, 1), x="x", weight="w")
    made.output("y", HALF)
    ane, session = run(made, tmp_path, [[[[1, 2, 3]]]], arithmetic="ane")
    assert ane.item() == 6
    assert session.rule_shares.products == {"unknown": 3}


def test_float32_programs_do_not_run_on_the_ane(tmp_path: Path) -> None:
    ane, session = run(program("exp", (1, 1), "FLOAT32"), tmp_path, [[1]], arithmetic="ane")
    assert ane.item() == np.exp(np.float32(1))
    assert session.rule_shares.operations == {"unknown": 1}


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


def run_alone(path: Path, x: Any = X, **options: Any) -> tuple[Any, Any]:
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
    y, made = run_alone(package(tmp_path, op, step=0.25, zero=3, stored=stored))
    expected = r16(integer_sums(0.25, 3) * 0.25 * SCALES[:, 0].astype(np.float64))
    np.testing.assert_array_equal(y.T if op == "left" else y, expected)
    assert made.rule_shares.products == {"inferred": y.size * INPUTS}


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
        _, made = run_alone(path)
        grades += made.rule_shares.products
    assert grades == ["recorded", *["inferred"] * 3]


def test_sums_of_codes_may_exceed_the_limit_of_fixed_point(tmp_path: Path) -> None:
    """40 products of 127 and 127 with scales of 1/4: 40322.5 is beyond 32768."""
    path = package(
        tmp_path, "linear", step=0.25, codes=np.full((6, INPUTS), 127, np.int8),
        scale=np.full((6, 1), 0.25, np.float16),
    )  # fmt: skip
    y, _ = run_alone(path, np.full((3, INPUTS), 127 / 4, np.float32))
    assert y.tolist() == [[40320.0] * 6] * 3


def test_a_bias_is_added_before_rounding(tmp_path: Path) -> None:
    for op in ("linear", "conv"):
        y, _ = run_alone(package(tmp_path / op, op, step=0.25, bias=True))
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
    y, made = run_alone(package(tmp_path, "linear", **options), x)
    if options["step"]:
        x = quantize(x, 0.25, "int8") * np.float32(0.25)
    held = (CODES * SCALES).astype(np.float16)
    product = held[None].astype(np.float64) * x[:, None] * 2.0**16
    total = np.copysign(np.floor(np.abs(product) + 0.5), product).sum(-1)
    np.testing.assert_array_equal(y, r16(total / 2**16))
    assert [*made.rule_shares.products] == ["inferred"]


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
    y, made = run_alone(path, x, scale_after=True)
    total = r16(x.astype(np.float64) @ CODES.T)
    expected = r16(total.astype(np.float64) * SCALES[:, 0])
    y = y.T if op == "left" else y
    np.testing.assert_array_equal(y, expected)
    assert not np.array_equal(y, r16((x.astype(np.float64) @ CODES.T) * SCALES[:, 0]))
    assert [*made.rule_shares.products] == ["inferred"]


def test_late_scales_overflow_and_are_off_by_default(tmp_path: Path) -> None:
    """40 * 127 * 8 = 40640 is beyond 32768, though only 40.6 once scaled."""
    scale = np.full((6, 1), 2.0**-10, np.float16)
    codes = np.full((6, INPUTS), 127, np.int8)
    path = package(tmp_path, "linear", codes=codes, scale=scale, bias=True)
    x = np.full((3, INPUTS), 8, np.float32)
    assert np.isfinite(run_alone(path, x)[0]).all()
    y, made = run_alone(path, x, scale_after=True)
    assert np.isinf(y).all()
    assert made.rule_shares.infinite == {"y": y.size}
    y, _ = run_alone(path, np.ones((3, INPUTS), np.float32), scale_after=True)
    assert y[0].tolist() == [math.floor(127 * 40 / 4 + 0.5) * 4 / 1024 + b for b in range(6)]


def test_the_switch_is_of_this_arithmetic(tmp_path: Path) -> None:
    path = package(tmp_path, "linear")
    with pytest.raises(ExecutionError, match="needs arithmetic 'ane'"):
        open_session(read_model(path), scale_after=True)
    opened = open_session(read_model(path), arithmetic="ane", scale_after=True)
    np.testing.assert_array_equal(
        opened.predict({"x": X})["y"], run_alone(path, scale_after=True)[0]
    )
