"""R049 (masks from outside) and R052 (infinite masks)."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.records import Operation, TensorType
from tests.gates.placement.programs import const, foretell, full, half, op, rules, value

QKV = {"q": half(1, 2, 4, 8), "m": half(1, 1, 4, 4)}


def attention(mask: str | None) -> Operation:
    given = {} if mask is None else {"attn_mask": mask}
    result = half(1, 2, 4, 8)
    return op("scaled_dot_product_attention", "y", result, query="q", key="q", value="q", **given)


def test_a_mask_that_is_an_input_is_ineligible() -> None:
    (finding,) = foretell(attention("m"), inputs=QKV).matches
    assert finding.rule == "R049"
    assert finding.why == (
        "Its attn_mask is the function's input `m`; the ANE's fused attention then ignores the "
        "mask."
    )


def test_a_cast_input_is_still_an_input() -> None:
    inputs: dict[str, TensorType] = {**QKV, "m": full(1, 1, 4, 4)}
    cast = op("cast", "m16", half(1, 1, 4, 4), x="m")
    assert rules(cast, attention("m16"), inputs=inputs) == [("y", "R049", "ineligible")]


def test_a_mask_from_an_ineligible_op_is_ineligible() -> None:
    band = op("band_part", "b", half(1, 1, 4, 4), x="m")
    assert rules(band, attention("b"), inputs=QKV) == [
        ("b", "R005", "ineligible"),
        ("y", "R049", "ineligible"),
    ]


def test_a_mask_computed_by_an_eligible_op_or_constant_or_absent_is_fine() -> None:
    scaled = op("mul", "s", half(1, 1, 4, 4), x="m", y=value(0.5))
    constant = const("c", np.zeros((1, 1, 4, 4), np.float16))
    assert rules(scaled, attention("s"), inputs=QKV) == []
    assert rules(constant, attention("c"), inputs=QKV) == []
    assert rules(attention(None), inputs=QKV) == []


LOW = [-np.inf, -65504.0, np.finfo(np.float32).min]


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(
    ("kind", "parameter"), [("add", "y"), ("select", "a"), ("select", "b"), ("fill", "value")]
)
def test_a_mask_without_end_is_warned_of(kind: str, parameter: str, low: float) -> None:
    mask = const("low", np.array([0, low], np.float32))
    masked = op(kind, "y", half(1, 8, 1, 4), **{parameter: "low"})
    assert rules(mask, masked) == [("y", "R052", "warned")]


@pytest.mark.parametrize("low", [-1e4, -6e4, np.nan, np.inf])
def test_a_finite_mask_is_fine(low: float) -> None:
    mask = const("low", np.array([0, low], np.float16))
    assert rules(mask, op("add", "y", half(1, 8, 1, 4), x="x", y="low")) == []


def test_the_lowest_number_elsewhere_is_no_mask() -> None:
    clip = op("clip", "y", half(1, 8, 1, 4), x="x", alpha=value(-np.inf), beta=value(0.5))
    assert rules(clip) == []
