"""Fields of untrusted JSON."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement.plans import fields
from pytest_ane.mlprogram.errors import PlanError


@pytest.mark.parametrize(
    ("word", "device"),
    [("MLNeuralEngineComputeDevice", "ANE"), ("neural engine", "ANE"), ("N", "ANE"),
     (" MLGPU", "GPU"), ("cpu", "CPU"), ("static", None), ("?", None), ("", None)],
)  # fmt: skip
def test_devices_by_the_names_tools_use(word: str, device: str | None) -> None:
    assert fields.device(word, "here") == device


def test_only_an_opset_prefix_is_dropped() -> None:
    assert [fields.op_type(name) for name in ("ios17.conv", "conv", "mine.conv", "ios.conv")] == [
        "conv", "conv", "mine.conv", "ios.conv",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [True, "1", None, -1, float("inf"), float("nan"), 10**400, []])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(PlanError, match=r"^cost is "):
        fields.number(value, "cost")


@pytest.mark.parametrize("value", [True, 1.0, -1, 2**60, "1"])
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(PlanError, match=r"^n is no count"):
        fields.count(value, "n")
