"""Rules on element types, and on compressed and quantized weights."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import DType, Operation, TensorType
from tests.gates.placement.programs import const, foretell, full, half, ints, op, rules, value

IN = {"x": full(1, 8, 1, 4)}


def test_an_op_that_computes_or_reads_fp32_is_ineligible() -> None:
    (finding,) = foretell(op("mul", "y", full(1, 8, 1, 4), x="x", y="x"), inputs=IN).matches
    assert (finding.op, finding.rule) == ("y", "R021")
    assert finding.why == "It computes fp32, and the ANE computes in fp16 only."
    compare = op("greater", "y", TensorType(DType.BOOL, (1, 8, 1, 4)), x="x", y=value(0.5))
    assert rules(compare, inputs=IN) == [("y", "R021", "ineligible")]


def test_fp32_in_the_middle_is_ineligible_and_its_casts_are_not() -> None:
    found = rules(
        op("relu", "r", half(1, 8, 1, 4), x="x"),
        op("cast", "up", full(1, 8, 1, 4), x="r"),
        op("exp", "e", full(1, 8, 1, 4), x="up"),
        op("cast", "down", half(1, 8, 1, 4), x="e"),
        op("relu", "y", half(1, 8, 1, 4), x="down"),
    )
    assert found == [("e", "R021", "ineligible")]


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


def test_recurrent_ops_have_no_kernel_at_any_precision_and_are_named_once() -> None:
    lstm = op("lstm", "l", full(1, 8, 1, 4), x="up")
    found = foretell(
        op("relu", "r", half(1, 8, 1, 4), x="x"), op("cast", "up", full(1, 8, 1, 4), x="r"), lstm
    )
    named = [(f.op, f.rule) for f in found.matches]
    assert named == [("l", "R001")]


def test_casts_at_the_boundary_are_not_counted() -> None:
    found = foretell(
        op("cast", "x16", half(1, 8, 1, 4), x="x"),
        op("relu", "y16", half(1, 8, 1, 4), x="x16"),
        op("cast", "y", full(1, 8, 1, 4), x="y16"),
        inputs=IN,
    )
    assert found.matches == ()
    assert (found.compute, found.left_out) == ({"relu": 1}, {"boundary cast": 2})


def test_fp32_constants_and_integers_are_no_fp32_computation() -> None:
    norm = op("layer_norm", "n", half(1, 8, 1, 4), x="x", epsilon="eps")
    shape = op("slice_by_index", "s", ints(2), x=value([1, 2, 3]), begin=value([0]))
    assert rules(const("eps", np.float32(1e-5)), norm, shape) == []


FLAGS = TensorType(DType.BOOL, (1, 8))


@pytest.mark.parametrize(
    "operation",
    [
        op("add", "y", ints(1), x="n", y=value([1])),
        op("less", "y", TensorType(DType.BOOL, (1,)), x="n", y=value([4])),
        op("relu", "y", ints(1), x="n"),
        op("cast", "y", half(1), x="m"),
    ],
    ids=lambda operation: operation.op,
)
def test_arithmetic_on_runtime_integers_is_ineligible(operation: Operation) -> None:
    after = op("relu", "z", half(1), x="h")
    made = op("reduce_argmax", "m", ints(1), x="h")
    found = rules(made, operation, after, inputs={"n": ints(1), "h": half(1)})
    assert ("y", "R022", "ineligible") in found


def test_integers_that_follow_a_shape_or_index_a_gather_are_not() -> None:
    found = rules(
        op("shape", "s", ints(4), x="x"),
        op("add", "t", ints(4), x="s", y=value([1])),
        op("gather", "y", half(1, 8), x="x", indices="n", axis=value(3)),
        inputs={"x": half(1, 8, 1, None), "n": ints(1)},
    )
    assert "R022" not in [rule for _, rule, _ in found]


@pytest.mark.parametrize("kind", ["cast", "quantize"])
def test_an_int8_output_is_ineligible_and_int8_within_is_not(kind: str) -> None:
    relu = op("relu", "r", half(1, 8, 1, 4), x="x")
    to_int8 = op(kind, "q", TensorType(DType.INT8, (1, 8, 1, 4)), x="r")
    after = op("relu", "y", half(1, 8, 1, 4), x="q")
    assert ("q", "R104", "ineligible") in rules(relu, to_int8)
    assert "R104" not in [rule for _, rule, _ in rules(relu, to_int8, after)]


def test_a_cast_from_an_input_to_an_int8_output_is_ineligible() -> None:
    to_int8 = op("cast", "q", TensorType(DType.INT8, (1, 8, 1, 4)), x="x")
    after = op("cast", "y", half(1, 8, 1, 4), x="q")
    assert rules(to_int8) == [("q", "R104", "ineligible")]
    assert rules(to_int8, after) == []


def test_a_tile_of_bools_is_warned_of_and_one_of_fp16_is_fine() -> None:
    tile = op("tile", "y", TensorType(DType.BOOL, (2, 8)), x="x", reps=value([2, 1]))
    assert rules(tile, inputs={"x": FLAGS}) == [("y", "R024", "warned")]
    assert rules(op("tile", "y", half(2, 8, 1, 4), x="x", reps=value([2, 1, 1, 1]))) == []


def test_bf16_is_warned_of_and_fp16_is_fine() -> None:
    kind = TensorType(DType.BF16, (1, 8))
    assert rules(op("relu", "y", kind, x="x"), inputs={"x": kind}) == [("y", "R026", "warned")]
    assert rules(op("relu", "y", half(1, 8, 1, 4), x="x")) == []


def scaled(*scale: int, data: str = "d") -> Operation:
    """A weight [32, 64, 1, 1] expanded with scales of a shape."""
    scales = value(np.ones(scale, np.float16))
    return op("constexpr_blockwise_shift_scale", "w", half(32, 64, 1, 1), data=data, scale=scales)


def data(*shape: int) -> Operation:
    return const("d", np.zeros(shape, np.int8))


def consume(kind: str, *operations: Operation, weight: str = "weight") -> list[str]:
    consumer = op(kind, "y", half(1, 32, 1, 4), x="x", **{weight: "w"})
    found = rules(*operations, consumer, inputs={"x": half(1, 64, 1, 4)})
    assert all(place == "y" for place, _, _ in found), "compile-time ops are never found"
    return [rule for _, rule, _ in found]


@pytest.mark.parametrize(
    ("kind", "scale", "found"),
    [
        # Along the inputs of a weight.
        *(("conv", scale, ["R064"]) for scale in ((32, 2, 1, 1), (1, 2, 1, 1), (1, 64, 1, 1))),
        ("linear", (32, 2), ["R064"]),
        ("conv_transpose", (2, 32, 1, 1), ["R064"]),
        # Per output channel, or per tensor.
        *(("conv", scale, []) for scale in ((32, 1, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1))),
        ("linear", (32, 1), []),
        ("conv_transpose", (1, 32, 1, 1), []),
    ],
)
def test_scales_along_the_inputs_of_a_weight_make_its_consumer_ineligible(
    kind: str, scale: tuple[int, ...], found: list[str]
) -> None:
    assert consume(kind, data(32, 64, 1, 1), scaled(*scale)) == found


@pytest.mark.parametrize(
    ("transpose", "scale", "expected"),
    [
        (False, (1, 32), []),
        (False, (64, 1), ["R064"]),
        (True, (32, 1), []),
        (True, (1, 64), ["R064"]),
    ],
)
def test_the_output_axis_of_a_matmul_follows_its_transposition(
    transpose: bool, scale: tuple[int, ...], expected: list[str]
) -> None:
    flag = const("t", np.bool_(transpose))
    product = op("matmul", "y", half(1, 32, 1, 4), x="x", y="w", transpose_y="t")
    found = rules(data(64, 32), scaled(*scale), flag, product)
    assert [rule for _, rule, _ in found] == expected


def test_an_embedding_may_be_scaled_along_one_axis_but_not_along_two() -> None:
    gather = op("gather", "y", half(2, 64), x="w", indices=value([0, 1]))
    assert rules(data(32, 64), scaled(32, 1), gather) == []
    assert rules(data(32, 64), scaled(32, 2), gather) == [("y", "R064", "ineligible")]


def test_the_message_names_weight_axis_and_count_and_every_consumer() -> None:
    found = foretell(data(32, 64, 1, 1), scaled(32, 2, 1, 1), op("conv", "y", half(1), weight="w"))
    assert [finding.why for finding in found.matches] == [
        "Its weight `w` has 2 scales along axis 1; the ANE takes them per output channel or per "
        "tensor only."
    ]
    convs = [op("conv", name, half(1, 32, 1, 4), x="x", weight="w") for name in ("a", "b")]
    found = rules(data(32, 64, 1, 1), scaled(32, 2, 1, 1), *convs, outputs=["a", "b"])
    assert found == [("a", "R064", "ineligible"), ("b", "R064", "ineligible")]


def test_a_palette_or_its_table_scaled_per_channel_is_ineligible() -> None:
    palette = op("constexpr_lut_to_dense", "d", half(32, 64, 1, 1), indices="i", lut="l")
    assert consume("conv", palette, scaled(32, 1, 1, 1)) == ["R069"]
    table = const("d", np.zeros((2, 64, 1, 1, 16, 1), np.float16))
    scaled_table = scaled(1, 64, 1, 1, 1, 1)
    palette = op("constexpr_lut_to_dense", "p", half(32, 64, 1, 1), indices="i", lut="w")
    conv = op("conv", "y", half(1, 32, 1, 4), x="x", weight="p")
    assert rules(table, scaled_table, palette, conv) == [("y", "R069", "ineligible")]


def test_quantized_tables_palettes_alone_and_the_forms_of_iOS_16_are_fine() -> None:
    table = const("d", np.zeros((2, 1, 1, 1, 16, 1), np.int8))
    palette = op("constexpr_lut_to_dense", "p", half(32, 64, 1, 1), indices="i", lut="w")
    conv = op("conv", "y", half(1, 32, 1, 4), x="x", weight="p")
    assert rules(table, scaled(1, 1, 1, 1, 1, 1), palette, conv) == []
    palette = op("constexpr_lut_to_dense", "w", half(32, 64, 1, 1), indices="i", lut="l")
    assert consume("conv", palette) == []
    int8 = TensorType(DType.INT8, (32, 64, 1, 1))
    integers = op("constexpr_lut_to_dense", "d", int8, indices="i", lut="l")
    assert consume("conv", integers, scaled(32, 1, 1, 1)) == []
    affine = op("constexpr_affine_dequantize", "w", half(32, 64, 1, 1))
    assert consume("conv", affine) == []


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


def test_quantized_activations_are_warned_of_once() -> None:
    found = rules(
        op("quantize", "q", half(1, 8, 1, 4), input="x"),
        op("dequantize", "y", half(1, 8, 1, 4), input="q"),
    )
    assert found == [("q", "R071", "warned")]
