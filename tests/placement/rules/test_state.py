"""R061 (the element type of states) and R059 (updates that reach none)."""

from __future__ import annotations

from pytest_ane.mil.records import Operation, StateType, TensorType
from tests.placement.programs import foretell, full, half, op, rules, value


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


def update(*after: Operation) -> list[tuple[str, str, str]]:
    at = {"begin": value([0, 0]), "end": value([1, 4])}
    new = op("slice_update", "u", half(1, 8), x="c", update="h", **at)
    cache, h = StateType(half(1, 8)), half(1, 4)
    read = op("read_state", "c", half(1, 8), input="cache")
    return rules(read, new, *after, inputs={"cache": cache, "h": h}, outputs=["u"])


def test_an_update_of_a_slice_that_reaches_no_state_is_warned_of() -> None:
    assert update() == [("u", "R059", "warned")]
    assert update(op("relu", "y", half(1, 8), x="u")) == [("u", "R059", "warned")]


def test_an_update_that_is_written_to_its_state_is_fine() -> None:
    assert update(op("write_state", "", None, input="cache", data="u")) == []


def test_of_a_chain_of_updates_only_the_last_must_be_written() -> None:
    more = op("slice_update", "v", half(1, 8), x="u", update="h", begin=value([0, 4]))
    assert update(more, op("write_state", "", None, input="cache", data="v")) == []
    assert update(more) == [("v", "R059", "warned")]
