"""R035, R038, R073, R106, R108 and R109: convolutions and pools."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import Operation
from tests.gates.placement.programs import const, half, op, rules, value


def conv(
    *weight: int,
    palette: tuple[int, ...] = (),
    groups: int = 1,
    rank: int = 4,
    strides: tuple[int, ...] = (1, 1),
) -> list[str]:
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


def test_along_one_to_three_axes_it_is_fine() -> None:
    assert conv(8, 8, 3, 3) == conv(8, 8, 3, rank=3) == conv(8, 8, 1, 1, 1, rank=5) == []


@pytest.mark.parametrize("kernel", [(1, 16), (32, 1), (512, 1), (17, 17), (3, 17)])
def test_a_wide_kernel_is_ineligible(kernel: tuple[int, int]) -> None:
    assert conv(8, 8, *kernel) == ["R035"]


def test_a_wide_kernel_along_one_axis_is_ineligible() -> None:
    assert conv(8, 8, 256, rank=3) == ["R035"]


@pytest.mark.parametrize("kernel", [(1, 15), (31, 1), (13, 13), (16, 16)])
def test_a_kernel_within_the_limits_is_fine(kernel: tuple[int, int]) -> None:
    assert conv(8, 8, *kernel) == []


def test_a_weight_computed_at_run_time_is_warned_of() -> None:
    found = rules(
        op("relu", "w", half(2, 8, 1, 1), x="v"),
        op("conv", "y", half(1, 2, 1, 4), x="x", weight="w"),
        inputs={"x": half(1, 8, 1, 4), "v": half(2, 8, 1, 1)},
    )
    assert found == [("y", "R038", "warned")]


def test_a_constant_or_compressed_weight_is_fine() -> None:
    assert conv(8, 8, 1, 1) == conv(8, 8, 1, 1, palette=(1, 1, 1, 1, 16, 1)) == []


def test_a_depthwise_palette_of_4_bits_is_warned_of() -> None:
    assert conv(8, 1, 3, 3, palette=(1, 1, 1, 1, 16, 1), groups=8) == ["R073"]


def test_a_depthwise_weight_in_fp16_or_8_bits_is_fine() -> None:
    assert conv(8, 1, 3, 3, groups=8) == []
    assert conv(8, 1, 3, 3, palette=(1, 1, 1, 1, 256, 1), groups=8) == []


def pool(width: int, stride: int = 2, kind: str = "max_pool") -> list[tuple[str, str, str]]:
    given = {"kernel_sizes": value([9, width]), "strides": value([stride, stride])}
    return rules(op(kind, "y", half(1, 8, 1, 4), x="x", **given))


@pytest.mark.parametrize("width", [9, 31, 33])
def test_a_wide_max_pool_is_ineligible(width: int) -> None:
    assert pool(width) == [("y", "R106", "ineligible")]


def test_a_max_pool_of_8_or_32_and_other_pools_are_fine() -> None:
    assert pool(8) == pool(32) == pool(14, kind="avg_pool") == []


@pytest.mark.parametrize("stride", [3, 5])
def test_a_pool_of_other_strides_is_warned_of(stride: int) -> None:
    assert pool(3, stride) == [("y", "R109", "warned")]


def test_a_pool_of_stride_1_2_or_4_is_fine() -> None:
    assert pool(3, 1) == pool(3, 2) == pool(3, 4) == []


@pytest.mark.parametrize("strides", [(5, 5), (11, 11), (7, 5), (4, 8)])
def test_costly_strides_are_warned_of(strides: tuple[int, int]) -> None:
    assert conv(8, 8, 3, 3, strides=strides) == ["R108"]


@pytest.mark.parametrize("strides", [(1, 1), (2, 4), (8, 8), (12, 12), (2, 3), (4, 1)])
def test_strides_of_twos_and_threes_are_fine(strides: tuple[int, int]) -> None:
    assert conv(8, 8, 3, 3, strides=strides) == []


def test_a_palette_goes_with_strides_to_2() -> None:
    palette = (1, 1, 1, 1, 16, 1)
    assert conv(8, 8, 3, 3, palette=palette, strides=(4, 4)) == ["R108"]
    assert conv(8, 8, 3, 3, palette=palette, strides=(2, 2)) == []
