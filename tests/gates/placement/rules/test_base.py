"""The rules as data."""

from __future__ import annotations

from collections import Counter

from pytest_ane.gates.placement._graph import Graph
from pytest_ane.gates.placement.rules import ALL_RULES, OP_RULES, OpRule, find
from pytest_ane.gates.placement.rules._ops import mil_ops
from tests.gates.placement.programs import function, half, op

FAILING = (
    *(1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 16, 18, 21, 22, 27, 30, 31, 35, 49, 53, 56, 61, 64),
    *(69, 76, 104, 105, 106),
)
WARNING = (
    *(5, 9, 12, 15, 17, 24, 26, 28, 29, 30, 31, 32, 38, 48, 52, 55, 58, 59, 62, 68, 70, 71, 73),
    *(107, 108, 109),
)


def test_the_first_set_of_rules_is_there() -> None:
    listed = {(int(rule.id.removeprefix("R")), rule.outcome) for rule in ALL_RULES}
    assert listed == {(n, "ineligible") for n in FAILING} | {(n, "warned") for n in WARNING}


def test_an_id_and_outcome_name_one_rule() -> None:
    names = Counter((rule.id, rule.outcome) for rule in ALL_RULES)
    assert set(names.values()) == {1}
    for rule in ALL_RULES:
        assert find(rule.id, rule.outcome) is rule
    assert find("R999", "warned") is None


def test_every_rule_tells_what_it_is_and_where_it_comes_from() -> None:
    for rule in ALL_RULES:
        assert rule.title.endswith("."), rule.id
        assert all((rule.consequence, rule.scope, rule.source, rule.fix)), rule.id
        assert rule.matches or (isinstance(rule, OpRule) and rule.ops), rule.id
        assert "unattributed" not in rule.source


def test_rules_name_only_ops_that_exist() -> None:
    assert set().union(*(rule.ops for rule in OP_RULES)) <= mil_ops()


def test_a_rule_applies_to_its_own_ops_only() -> None:
    rule = OpRule(
        id="R", title="No.", ops=frozenset({"topk"}), consequence="", scope="", source="", fix=""
    )
    sites = Graph(function(op("topk", "a", half(1)), op("relu", "b", half(1)))).sites()
    assert [rule.apply(site) for site in sites] == ["No.", None]


def test_the_list_of_ops_is_the_one_coremltools_defines() -> None:
    assert len(mil_ops()) == 168
    assert {"conv", "constexpr_lut_to_dense", "read_state", "write_state"} <= mil_ops()
    assert not {"_const_symbolic", "coreml_update_state", "complex_fft"} & mil_ops()
