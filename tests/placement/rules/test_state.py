"""R061: the element type of states."""

from __future__ import annotations

from pytest_ane.mil.records import StateType, TensorType
from tests.placement.programs import foretell, full, half, op


def stateful(kind: TensorType) -> list[tuple[str, str, str]]:
    read = op("read_state", "c", half(1, 8), input="cache")
    found = foretell(
        read, op("relu", "y", half(1, 8), x="c"), inputs={"cache": StateType(kind)}
    ).findings
    return [(finding.rule, finding.type, finding.why) for finding in found]


def test_a_state_in_fp32_is_ineligible() -> None:
    assert ("R061", "state", "State `cache` is fp32[1,8], not fp16.") in stateful(full(1, 8))


def test_a_state_in_fp16_is_fine() -> None:
    assert stateful(half(1, 8)) == []
