"""R068, R070 and R071: palettes and activations that some devices refuse."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gates.placement.programs import half, op, rules, value


def palette(*lut: int) -> list[str]:
    """The rules that a convolution by a palette with a table of this shape meets."""
    table, indices = value(np.zeros(lut, np.float16)), value(np.zeros((8, 8, 1, 1), np.uint8))
    found = rules(
        op("constexpr_lut_to_dense", "w", half(8, 8, 1, 1), lut=table, indices=indices),
        op("conv", "y", half(1, 8, 1, 4), x="x", weight="w"),
    )
    return [rule for _, rule, _ in found]


def test_palettes_along_two_axes_are_warned_of() -> None:
    assert palette(4, 2, 1, 1, 16, 1) == ["R068"]


@pytest.mark.parametrize("lut", [(4, 1, 1, 1, 16, 1), (1, 2, 1, 1, 16, 1), (1, 1, 1, 1, 16, 1)])
def test_palettes_along_one_axis_are_fine(lut: tuple[int, ...]) -> None:
    assert palette(*lut) == []


def test_a_table_of_the_older_form_is_fine() -> None:
    assert palette(16) == []


def test_vectors_of_3_are_warned_of() -> None:
    assert palette(1, 1, 1, 1, 16, 3) == ["R070"]


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_vectors_of_the_documented_sizes_are_fine(size: int) -> None:
    assert palette(1, 1, 1, 1, 16, size) == []


def test_quantized_activations_are_warned_of_once() -> None:
    found = rules(
        op("quantize", "q", half(1, 8, 1, 4), input="x"),
        op("dequantize", "y", half(1, 8, 1, 4), input="q"),
    )
    assert found == [("q", "R071", "warned")]
