"""R064 (scales per block) and R069 (palettes with scales)."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import DType, Operation, TensorType
from tests.gates.placement.programs import const, foretell, half, op, rules, value


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
    ("kind", "scale"),
    [
        ("conv", (32, 2, 1, 1)),
        ("conv", (1, 2, 1, 1)),
        ("conv", (1, 64, 1, 1)),
        ("linear", (32, 2)),
        ("conv_transpose", (2, 32, 1, 1)),
    ],
)
def test_scales_along_the_inputs_of_a_weight_make_its_consumer_ineligible(
    kind: str, scale: tuple[int, ...]
) -> None:
    assert consume(kind, data(32, 64, 1, 1), scaled(*scale)) == ["R064"]


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("conv", (32, 1, 1, 1)),
        ("conv", (2, 1, 1, 1)),
        ("conv", (1, 1, 1, 1)),
        ("linear", (32, 1)),
        ("conv_transpose", (1, 32, 1, 1)),
    ],
)
def test_scales_per_output_channel_or_per_tensor_are_fine(
    kind: str, scale: tuple[int, ...]
) -> None:
    assert consume(kind, data(32, 64, 1, 1), scaled(*scale)) == []


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


def test_the_message_names_weight_axis_and_count() -> None:
    found = foretell(data(32, 64, 1, 1), scaled(32, 2, 1, 1), op("conv", "y", half(1), weight="w"))
    assert [finding.why for finding in found.matches] == [
        "Its weight `w` has 2 scales along axis 1; the ANE takes them per output channel or per "
        "tensor only."
    ]


def test_every_consumer_of_one_weight_is_named() -> None:
    convs = [op("conv", name, half(1, 32, 1, 4), x="x", weight="w") for name in ("a", "b")]
    found = rules(data(32, 64, 1, 1), scaled(32, 2, 1, 1), *convs, outputs=["a", "b"])
    assert found == [("a", "R064", "ineligible"), ("b", "R064", "ineligible")]


def test_a_palette_scaled_per_channel_makes_its_consumer_ineligible() -> None:
    palette = op("constexpr_lut_to_dense", "d", half(32, 64, 1, 1), indices="i", lut="l")
    assert consume("conv", palette, scaled(32, 1, 1, 1)) == ["R069"]


def test_a_scaled_look_up_table_is_the_same_thing() -> None:
    table = const("d", np.zeros((2, 64, 1, 1, 16, 1), np.float16))
    scaled_table = scaled(1, 64, 1, 1, 1, 1)
    palette = op("constexpr_lut_to_dense", "p", half(32, 64, 1, 1), indices="i", lut="w")
    conv = op("conv", "y", half(1, 32, 1, 4), x="x", weight="p")
    assert rules(table, scaled_table, palette, conv) == [("y", "R069", "ineligible")]


def test_a_quantized_look_up_table_is_fine() -> None:
    table = const("d", np.zeros((2, 1, 1, 1, 16, 1), np.int8))
    palette = op("constexpr_lut_to_dense", "p", half(32, 64, 1, 1), indices="i", lut="w")
    conv = op("conv", "y", half(1, 32, 1, 4), x="x", weight="p")
    assert rules(table, scaled(1, 1, 1, 1, 1, 1), palette, conv) == []


def test_a_palette_alone_and_scaled_integers_are_fine() -> None:
    palette = op("constexpr_lut_to_dense", "w", half(32, 64, 1, 1), indices="i", lut="l")
    assert consume("conv", palette) == []
    int8 = TensorType(DType.INT8, (32, 64, 1, 1))
    integers = op("constexpr_lut_to_dense", "d", int8, indices="i", lut="l")
    assert consume("conv", integers, scaled(32, 1, 1, 1)) == []


def test_the_iOS_16_forms_are_fine() -> None:
    affine = op("constexpr_affine_dequantize", "w", half(32, 64, 1, 1))
    assert consume("conv", affine) == []
