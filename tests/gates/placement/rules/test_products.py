"""Rules on convolutions, matrix products and attention."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import Operation
from tests.gates.placement.programs import const, half, op, rules, value

PALETTE = (1, 1, 1, 1, 16, 1)


def conv(
    *weight: int, palette: tuple[int, ...] = (), groups: int = 1, rank: int = 4,
    strides: tuple[int, ...] = (1, 1),
) -> list[str]:  # fmt: skip
    """The rules that a convolution by a weight of this shape meets."""
    made: list[Operation] = [const("w", np.zeros(weight, np.float16))]
    if palette:
        lut, indices = np.zeros(palette, np.float16), np.zeros(weight, np.uint8)
        given = {"lut": value(lut), "indices": value(indices)}
        made = [op("constexpr_lut_to_dense", "w", half(*weight), **given)]
    ones = (1,) * (rank - 2)
    given = {"groups": value(groups), "strides": value(strides)}
    y = op("conv", "y", half(1, weight[0], *ones), x="x", weight="w", **given)
    return [rule for _, rule, _ in rules(*made, y, inputs={"x": half(1, 8, *ones)})]


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        *((wide, ["R035"]) for wide in ((1, 16), (32, 1), (512, 1), (17, 17), (3, 17), (256,))),
        *((fine, []) for fine in ((1, 15), (31, 1), (13, 13), (16, 16), (3,), (3, 3), (1, 1, 1))),
    ],
)
def test_a_wide_kernel_is_ineligible(kernel: tuple[int, ...], found: list[str]) -> None:
    assert conv(8, 8, *kernel, rank=2 + len(kernel)) == found


def test_a_weight_computed_at_run_time_is_warned_of_and_a_compressed_one_is_fine() -> None:
    found = rules(
        op("relu", "w", half(2, 8, 1, 1), x="v"),
        op("conv", "y", half(1, 2, 1, 4), x="x", weight="w"),
        inputs={"x": half(1, 8, 1, 4), "v": half(2, 8, 1, 1)},
    )
    assert found == [("y", "R038", "warned")]
    assert conv(8, 8, 1, 1) == conv(8, 8, 1, 1, palette=PALETTE) == []


def test_a_depthwise_palette_of_4_bits_is_warned_of_and_fp16_or_8_bits_are_fine() -> None:
    assert conv(8, 1, 3, 3, palette=PALETTE, groups=8) == ["R073"]
    assert conv(8, 1, 3, 3, groups=8) == []
    assert conv(8, 1, 3, 3, palette=(1, 1, 1, 1, 256, 1), groups=8) == []


@pytest.mark.parametrize(
    ("kind", "width", "stride", "found"),
    [
        *(("max_pool", width, 2, [("y", "R106", "ineligible")]) for width in (9, 31, 33)),
        *(("max_pool", 3, stride, [("y", "R109", "warned")]) for stride in (3, 5)),
        *(("max_pool", 3, stride, []) for stride in (1, 2, 4)),
        ("max_pool", 8, 2, []),
        ("max_pool", 32, 2, []),
        ("avg_pool", 14, 2, []),
    ],
)
def test_pools(kind: str, width: int, stride: int, found: list[tuple[str, str, str]]) -> None:
    given = {"kernel_sizes": value([9, width]), "strides": value([stride, stride])}
    assert rules(op(kind, "y", half(1, 8, 1, 4), x="x", **given)) == found


@pytest.mark.parametrize(
    ("strides", "palette", "found"),
    [
        *((strides, (), ["R108"]) for strides in ((5, 5), (11, 11), (7, 5), (4, 8))),
        *((strides, (), []) for strides in ((1, 1), (2, 4), (8, 8), (12, 12), (2, 3), (4, 1))),
        ((4, 4), PALETTE, ["R108"]),
        ((2, 2), PALETTE, []),
    ],
)
def test_costly_strides_are_warned_of(
    strides: tuple[int, int], palette: tuple[int, ...], found: list[str]
) -> None:
    assert conv(8, 8, 3, 3, palette=palette, strides=strides) == found


def linear(*shape: int) -> list[str]:
    weight = value(np.zeros((4, shape[-1]), np.float16))
    made = op("linear", "y", half(*shape[:-1], 4), x="x", weight=weight)
    return [rule for _, rule, _ in rules(made, inputs={"x": half(*shape)})]


def matmul(*shape: int, flip: bool = False) -> list[str]:
    y = value(np.zeros((shape[-2] if flip else shape[-1], 4), np.float16))
    made = op("matmul", "y", half(1, 4), x="x", y=y, transpose_x=value(np.array(flip)))
    return [rule for _, rule, _ in rules(made, inputs={"x": half(*shape)})]


def test_products_of_rank_5_are_warned_of() -> None:
    for shape, found in (((1, 2, 2, 4, 4), ["R028"]), ((2, 2, 4, 4), [])):
        made = op("matmul", "y", half(*shape), x="a", y="b")
        inputs = {"a": half(*shape), "b": half(*shape)}
        assert [rule for _, rule, _ in rules(made, inputs=inputs)] == found
    assert (linear(1, 1, 2, 2, 4), linear(1, 2, 2, 4)) == (["R029"], [])


def test_a_product_by_a_constant_deeper_than_16384_is_warned_of() -> None:
    for found in (linear(1, 16_385), matmul(1, 16_385), matmul(16_385, 1, flip=True)):
        assert "R031" in found
    assert linear(1, 16_384) == matmul(1, 16_384) == []


@pytest.mark.parametrize(("depth", "deep"), [(32_768, False), (32_769, True)])
def test_a_product_of_two_activations_may_be_twice_as_deep(depth: int, deep: bool) -> None:
    made = op("matmul", "y", half(1, 1), x="a", y="b")
    found = rules(made, inputs={"a": half(1, depth), "b": half(depth, 1)})
    assert (("y", "R031", "ineligible") in found) is deep


QKV = {"q": half(1, 2, 4, 8), "m": half(1, 1, 4, 4)}


def attention(mask: str | None) -> Operation:
    given = {} if mask is None else {"attn_mask": mask}
    result = half(1, 2, 4, 8)
    return op("scaled_dot_product_attention", "y", result, query="q", key="q", value="q", **given)


SCALED = op("mul", "s", half(1, 1, 4, 4), x="m", y=value(0.5))
CONSTANT = const("c", np.zeros((1, 1, 4, 4), np.float16))


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([attention("m")], ["y R049"]),
        ([op("cast", "m16", half(1, 1, 4, 4), x="m"), attention("m16")], ["y R049"]),
        ([op("band_part", "b", half(1, 1, 4, 4), x="m"), attention("b")], ["b R005", "y R049"]),
        # Computed by an eligible op, constant, or absent.
        ([SCALED, attention("s")], []),
        ([CONSTANT, attention("c")], []),
        ([attention(None)], []),
    ],
)
def test_a_mask_from_outside_is_ineligible(made: list[Operation], found: list[str]) -> None:
    assert [f"{name} {rule}" for name, rule, _ in rules(*made, inputs=QKV)] == found


@pytest.mark.parametrize(
    ("kind", "parameter", "low", "found"),
    [
        *((*given, low, ["R052"])
          for low in (-np.inf, -65504.0, np.finfo(np.float32).min)
          for given in (("add", "y"), ("select", "a"), ("select", "b"), ("fill", "value"))),
        *(("add", "y", low, []) for low in (-1e4, -6e4, np.nan, np.inf)),
        ("clip", "alpha", -np.inf, []),
    ],
)  # fmt: skip
def test_a_mask_without_end_is_warned_of(
    kind: str, parameter: str, low: float, found: list[str]
) -> None:
    mask = const("low", np.array([0, low], np.float32))
    masked = op(kind, "y", half(1, 8, 1, 4), **{parameter: "low"})
    assert [rule for _, rule, _ in rules(mask, masked)] == found
