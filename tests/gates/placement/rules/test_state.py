"""R061 (the element type of states), R058 (their width), R059 (updates that reach none)."""

from __future__ import annotations

import pytest

from pytest_ane.mlprogram.records import Operation, StateType, TensorType
from tests.gates.placement.programs import foretell, full, half, op, rules, value


def stateful(kind: TensorType) -> list[tuple[str, str, str]]:
    read = op("read_state", "c", half(1, 32), input="cache")
    found = foretell(
        read, op("relu", "y", half(1, 32), x="c"), inputs={"cache": StateType(kind)}
    ).matches
    return [(finding.rule, finding.type, finding.why) for finding in found]


def test_a_state_in_fp32_is_ineligible() -> None:
    assert ("R061", "state", "State `cache` is fp32[1,32], not fp16.") in stateful(full(1, 32))


@pytest.mark.parametrize("kind", [half(1, 32), half(1, 3, 256), half(270, 2048)], ids=str)
def test_a_state_in_fp16_whose_width_is_a_multiple_of_32_is_fine(kind: TensorType) -> None:
    assert stateful(kind) == []


def test_a_state_of_another_width_is_warned_of() -> None:
    why = "State `cache` is fp16[1,3,256,270]; 270 is no multiple of 32."
    assert stateful(half(1, 3, 256, 270)) == [("R058", "state", why)]


def update(*after: Operation) -> list[tuple[str, str, str]]:
    at = {"begin": value([0, 0]), "end": value([1, 16])}
    new = op("slice_update", "u", half(1, 32), x="c", update="h", **at)
    cache, h = StateType(half(1, 32)), half(1, 16)
    read = op("read_state", "c", half(1, 32), input="cache")
    return rules(read, new, *after, inputs={"cache": cache, "h": h}, outputs=["u"])


def test_an_update_of_a_slice_that_reaches_no_state_is_warned_of() -> None:
    assert update() == [("u", "R059", "warned")]
    assert update(op("relu", "y", half(1, 32), x="u")) == [("u", "R059", "warned")]


def test_an_update_that_is_written_to_its_state_is_fine() -> None:
    assert update(op("write_state", "", None, input="cache", data="u")) == []


def test_of_a_chain_of_updates_only_the_last_must_be_written() -> None:
    more = op("slice_update", "v", half(1, 32), x="u", update="h", begin=value([0, 16]))
    assert update(more, op("write_state", "", None, input="cache", data="v")) == []
    assert update(more) == [("v", "R059", "warned")]
