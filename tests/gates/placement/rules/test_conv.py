"""R019, R035, R038 and R073: convolutions."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mil.records import Operation
from tests.gates.placement.programs import const, half, op, rules, value


def conv(*weight: int, palette: tuple[int, ...] = (), groups: int = 1, rank: int = 4) -> list[str]:
    """The rules that a convolution by a weight of this shape meets."""
    made: list[Operation] = [const("w", np.zeros(weight, np.float16))]
    if palette:
        lut, indices = np.zeros(palette, np.float16), np.zeros(weight, np.uint8)
        given = {"lut": value(lut), "indices": value(indices)}
        made = [op("constexpr_lut_to_dense", "w", half(*weight), **given)]
    ones = (1,) * (rank - 2)
    y = op("conv", "y", half(1, weight[0], *ones), x="x", weight="w", groups=value(groups))
    found = rules(*made, y, inputs={"x": half(1, 8, *ones)})
    return [rule for _, rule, outcome in found if outcome == "warned"]


def test_a_convolution_along_three_axes_is_warned_of() -> None:
    assert conv(8, 8, 1, 1, 1, rank=5) == ["R019"]


def test_along_one_and_two_axes_it_is_fine() -> None:
    assert conv(8, 8, 3, 3) == conv(8, 8, 3, rank=3) == []


@pytest.mark.parametrize("kernel", [(1, 16), (33, 1), (512, 1)])
def test_a_wide_kernel_is_warned_of(kernel: tuple[int, int]) -> None:
    assert conv(8, 8, *kernel) == ["R035"]


def test_a_wide_kernel_along_one_axis_is_warned_of() -> None:
    assert conv(8, 8, 256, rank=3) == ["R035"]


@pytest.mark.parametrize("kernel", [(1, 15), (32, 1), (13, 13)])
def test_a_kernel_within_the_limits_is_fine(kernel: tuple[int, int]) -> None:
    assert conv(8, 8, *kernel) == []


def test_a_weight_computed_at_run_time_is_warned_of() -> None:
    found = rules(
        op("relu", "w", half(8, 8, 1, 1), x="v"),
        op("conv", "y", half(1, 8, 1, 4), x="x", weight="w"),
        inputs={"x": half(1, 8, 1, 4), "v": half(8, 8, 1, 1)},
    )
    assert found == [("y", "R038", "warned")]


def test_a_constant_or_compressed_weight_is_fine() -> None:
    assert conv(8, 8, 1, 1) == conv(8, 8, 1, 1, palette=(1, 1, 1, 1, 16, 1)) == []


def test_a_depthwise_palette_of_4_bits_is_warned_of() -> None:
    assert conv(8, 1, 3, 3, palette=(1, 1, 1, 1, 16, 1), groups=8) == ["R073"]


def test_a_depthwise_weight_in_fp16_or_8_bits_is_fine() -> None:
    assert conv(8, 1, 3, 3, groups=8) == []
    assert conv(8, 1, 3, 3, palette=(1, 1, 1, 1, 256, 1), groups=8) == []
