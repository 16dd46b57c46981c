"""Rules on element types, and on compressed and quantized weights."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import DType, Operation, TensorType
from tests.gates.placement.programs import const, foretell, full, half, ints, op, rules, value

IN = {"x": full(1, 8, 1, 4)}


def upcast(*after: Operation) -> list[str]:
    """Why, of fp16 that is cast to fp32 in the middle of a program."""
    found = foretell(
        op("relu", "r", half(1, 8, 1, 4), x="x"),
        op("cast", "up", full(1, 8, 1, 4), x="r"),
        *after,
        inputs={"x": half(1, 8, 1, 4)},
    )
    return [finding.why for finding in found.matches if finding.rule == "R021"]


def test_a_constant_beyond_fp16_is_named() -> None:
    only = "and the ANE computes in fp16 only."
    shape = full(1, 8, 1, 4)

    def of(variance: float) -> str:
        vector = np.full(8, variance, np.float32)
        made = const("v", vector), const("m", np.ones(8, np.float32))
        return upcast(*made, op("batch_norm", "n", shape, x="up", variance="v", mean="m"))[-1]

    why = "as its variance of up to 497,160 is beyond fp16's 65,504"
    assert of(497160) == of(-497160) == f"It computes fp32, {why}, {only}"
    # What fp16 holds, and what is infinite in fp16 as it was meant to be.
    for fine in (65504.0, float("inf"), -3.0e38, float("nan")):
        assert of(fine) == f"It computes fp32, {only}"


def test_casts_at_the_boundary_are_not_counted() -> None:
    found = foretell(
        op("cast", "x16", half(1, 8, 1, 4), x="x"),
        op("relu", "y16", half(1, 8, 1, 4), x="x16"),
        op("cast", "y", full(1, 8, 1, 4), x="y16"),
        inputs=IN,
    )
    assert found.matches == ()
    assert (found.compute, found.left_out) == ({"relu": 1}, {"boundary cast": 2})


def scaled(*scale: int, data: str = "d") -> Operation:
    """A weight [32, 64, 1, 1] expanded with scales of a shape."""
    scales = value(np.ones(scale, np.float16))
    return op("constexpr_blockwise_shift_scale", "w", half(32, 64, 1, 1), data=data, scale=scales)


def data(*shape: int) -> Operation:
    return const("d", np.zeros(shape, np.int8))


@pytest.mark.parametrize(
    ("lut", "found"),
    [
        ((4, 2, 1, 1, 16, 1), ["R068"]),  # Along two axes.
        *((lut, []) for lut in ((4, 1, 1, 1, 16, 1), (1, 2, 1, 1, 16, 1), (16,))),
        ((1, 1, 1, 1, 16, 3), ["R070"]),  # Vectors of 3.
        *(((1, 1, 1, 1, 16, size), []) for size in (1, 2, 4, 5)),
    ],
)
def test_palettes(lut: tuple[int, ...], found: list[str]) -> None:
    table, indices = value(np.zeros(lut, np.float16)), value(np.zeros((8, 8, 1, 1), np.uint8))
    made = rules(
        op("constexpr_lut_to_dense", "w", half(8, 8, 1, 1), lut=table, indices=indices),
        op("conv", "y", half(1, 8, 1, 4), x="x", weight="w"),
    )
    assert [rule for _, rule, _ in made] == found


BOOL, INT8, BF16 = (TensorType(kind, (1, 8, 1, 4)) for kind in (DType.BOOL, DType.INT8, DType.BF16))
H, W = half(1, 8, 1, 4), half(32, 64, 1, 1)
RELU, UP = op("relu", "r", H, x="x"), op("cast", "up", full(1, 8, 1, 4), x="r")
AFTER = op("relu", "y", H, x="q")
PALETTE = op("constexpr_lut_to_dense", "p", W, indices="i", lut="w")
CONV = op("conv", "y", half(1, 32, 1, 4), x="x", weight="w")
OF_PALETTE = op("conv", "y", half(1, 32, 1, 4), x="x", weight="p")
GATHER = op("gather", "y", half(2, 64), x="w", indices=value([0, 1]))


def table(*shape: int, kind: type = np.float16) -> Operation:
    return const("d", np.zeros(shape, kind))


def palette(kind: TensorType = W, name: str = "d") -> Operation:
    return op("constexpr_lut_to_dense", name, kind, indices="i", lut="l")


def consumed(kind: str, *scale: int) -> list[Operation]:
    consumer = op(kind, "y", half(1, 32, 1, 4), x="x", weight="w")
    return [data(32, 64, 1, 1), scaled(*scale), consumer]


def product(transpose: bool, *scale: int) -> list[Operation]:
    made = op("matmul", "y", half(1, 32, 1, 4), x="x", y="w", transpose_y="t")
    return [data(64, 32), scaled(*scale), const("t", np.bool_(transpose)), made]


@pytest.mark.parametrize(
    ("operations", "x", "found"),
    [
        # fp32, read or computed, but for casts, constants, and what has no kernel at all.
        ([op("mul", "y", full(1, 8, 1, 4), x="x", y="x")], full(1, 8, 1, 4), ["y R021"]),
        ([op("greater", "y", BOOL, x="x", y=value(0.5))], full(1, 8, 1, 4), ["y R021"]),
        ([RELU, UP, op("exp", "e", full(1, 8, 1, 4), x="up"), op("cast", "q", H, x="e"), AFTER], H,
         ["e R021"]),
        ([const("eps", np.float32(1e-5)), op("layer_norm", "n", H, x="x", epsilon="eps"),
          op("slice_by_index", "s", ints(2), x=value([1, 2, 3]), begin=value([0]))], H, []),
        ([RELU, UP, op("lstm", "l", full(1, 8, 1, 4), x="up")], H, ["l R001"]),
        # Integers at run time, but for those that follow a shape or index a gather.
        ([op("add", "y", ints(1), x="x", y=value([1]))], ints(1), ["y R022"]),
        ([op("less", "y", TensorType(DType.BOOL, (1,)), x="x", y=value([4]))], ints(1), ["y R022"]),
        ([op("relu", "y", ints(1), x="x")], ints(1), ["y R022"]),
        ([op("reduce_argmax", "m", ints(1), x="x"), op("cast", "q", half(1), x="m"),
          op("relu", "y", half(1), x="q")], half(1), ["m R010", "q R022"]),
        ([op("shape", "s", ints(4), x="x"), op("add", "y", ints(4), x="s", y=value([1]))],
         half(1, 8, 1, None), ["s R005"]),
        # int8 is no output, and may be within.
        *(([RELU, op(kind, "q", INT8, x="r")], H, found) for kind, found in (
            ("cast", ["q R104"]), ("quantize", ["q R104", "q R071"]))),
        ([RELU, op("cast", "q", INT8, x="r"), AFTER], H, []),
        ([op("cast", "q", INT8, x="x")], H, ["q R104"]),
        ([op("cast", "q", INT8, x="x"), op("cast", "y", H, x="q")], H, []),
        ([op("tile", "y", BOOL, x="x", reps=value([2, 1]))], BOOL, ["y R024"]),
        ([op("tile", "y", half(2, 8, 1, 4), x="x", reps=value([2, 1, 1, 1]))], H, []),
        ([op("relu", "y", BF16, x="x")], BF16, ["y R026"]),
        ([op("quantize", "q", H, input="x"), op("dequantize", "y", H, input="q")], H, ["q R071"]),
        # Scales along the inputs of a weight; per output channel or per tensor they are fine.
        *((consumed("conv", *scale), H, ["y R064"])
          for scale in ((32, 2, 1, 1), (1, 2, 1, 1), (1, 64, 1, 1))),
        *((consumed("conv", *scale), H, [])
          for scale in ((32, 1, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1))),
        (consumed("linear", 32, 2), H, ["y R064"]),
        (consumed("linear", 32, 1), H, []),
        (consumed("conv_transpose", 2, 32, 1, 1), H, ["y R064"]),
        (consumed("conv_transpose", 1, 32, 1, 1), H, []),
        *((product(*given), H, found) for given, found in (
            ((False, 1, 32), []), ((False, 64, 1), ["y R064"]),
            ((True, 32, 1), []), ((True, 1, 64), ["y R064"]))),
        ([data(32, 64), scaled(32, 1), GATHER], H, []),
        ([data(32, 64), scaled(32, 2), GATHER], H, ["y R064"]),
        ([*consumed("conv", 32, 2, 1, 1), op("conv", "z", half(1), x="x", weight="w")], H,
         ["y R064", "z R064"]),
        # A palette, or its table, scaled by channel; not where the scales are of integers.
        ([palette(), scaled(32, 1, 1, 1), CONV], H, ["y R069"]),
        ([table(2, 64, 1, 1, 16, 1), scaled(1, 64, 1, 1, 1, 1), PALETTE, OF_PALETTE], H,
         ["y R069"]),
        ([table(2, 1, 1, 1, 16, 1, kind=np.int8), scaled(1, 1, 1, 1, 1, 1), PALETTE, OF_PALETTE],
         H, []),
        ([palette(TensorType(DType.INT8, (32, 64, 1, 1))), scaled(32, 1, 1, 1), CONV], H, []),
        ([palette(name="w"), CONV], H, []),
        ([op("constexpr_affine_dequantize", "w", W), CONV], H, []),
    ],
)  # fmt: skip
def test_rules_of_types_and_weights(
    operations: list[Operation], x: TensorType, found: list[str]
) -> None:
    met = rules(*operations, inputs={"x": x})
    assert [f"{name} {rule}" for name, rule, _ in met] == found


def test_the_message_names_weight_axis_and_count() -> None:
    found = foretell(*consumed("conv", 32, 2, 1, 1))
    assert [finding.why for finding in found.matches] == [
        "Its weight `w` has 2 scales along axis 1; the ANE takes them per output channel or per "
        "tensor only."
    ]
