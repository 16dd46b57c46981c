"""Rules on op types alone, on custom ops, and on gathers."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_ane.gates.placement.rules import ALL_RULES, OP_RULES, OpRule, find
from pytest_ane.gates.placement.rules._ops import mil_ops
from tests.gates.placement.programs import foretell, half, ints, op, rules, value

BARE = [rule for rule in OP_RULES if rule.why is None]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(rule, kind) for rule in BARE for kind in sorted(rule.ops)],
    ids=lambda given: given.id if isinstance(given, OpRule) else given,
)
def test_a_rule_on_op_types_fires_on_each_of_its_ops(rule: OpRule, kind: str) -> None:
    assert rules(op(kind, "y", half(1, 8))) == [("y", rule.id, rule.outcome)]


@pytest.mark.parametrize(
    "kind",
    [
        *("conv", "linear", "matmul", "softmax", "logical_not", "logical_and", "atan", "sin"),
        *("tanh", "reduce_sum", "affine", "resample"),
    ],
)
def test_no_rule_on_op_types_fires_on_what_the_ane_has(kind: str) -> None:
    assert rules(op(kind, "y", half(1, 8, 1, 4), x="x")) == []


def test_an_op_that_coremltools_does_not_define_is_a_custom_op() -> None:
    (finding,) = foretell(op("my_sparse_matmul", "y", half(1, 8), x="x")).matches
    assert (finding.rule, finding.outcome) == ("R018", "ineligible")
    assert finding.why == (
        "`my_sparse_matmul` is no op that coremltools 9.0 defines, so it counts as a custom op."
    )
    found = foretell(op("constexpr_secret", "y", half(1, 8)))
    assert [finding.rule for finding in found.matches] == ["R018"]
    assert found.left_out == {}


@pytest.mark.parametrize("kind", ["read_state", "write_state", "slice_update", "const"])
def test_ops_that_a_converter_writes_are_not_custom(kind: str) -> None:
    assert ("y", "R018", "ineligible") not in rules(op(kind, "y", half(1, 8)))


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("gather", "ineligible"), ("gather_along_axis", "warned"), ("gather_nd", "warned")],
)
def test_what_runs_by_runtime_indices_is_told_and_by_constant_ones_is_not(
    kind: str, outcome: str
) -> None:
    gather = op(kind, "y", half(3, 8), x=value([[0.5] * 8] * 9), indices="i")
    assert rules(gather, inputs={"i": ints(3)}) == [("y", "R012", outcome)]
    assert rules(op(kind, "y", half(1, 2, 1, 4), x="x", indices=value([0, 3]))) == []
    cut = op("slice_by_size", "y", half(1, 4), x="x", begin="b", size=value([1, 4]))
    assert rules(cut, inputs={"x": half(1, 8), "b": ints(2)}) == [("y", "R105", "ineligible")]
    cut = op("slice_by_size", "y", half(1, 4), x="x", begin=value([0, 4]), size=value([1, 4]))
    assert rules(cut, inputs={"x": half(1, 8)}) == []


def test_every_rule_is_one_tells_what_it_is_and_names_ops_that_exist() -> None:
    names = Counter((rule.id, rule.outcome) for rule in ALL_RULES)
    assert set(names.values()) == {1}
    for rule in ALL_RULES:
        assert find(rule.id, rule.outcome) is rule
    assert find("R999", "warned") is None
    for rule in ALL_RULES:
        assert rule.title.endswith("."), rule.id
        assert all((rule.consequence, rule.scope, rule.source, rule.fix)), rule.id
        assert rule.matches or (isinstance(rule, OpRule) and rule.ops), rule.id
        assert "unattributed" not in rule.source
    assert set().union(*(rule.ops for rule in OP_RULES)) <= mil_ops()
    assert len(mil_ops()) == 168
    assert {"conv", "constexpr_lut_to_dense", "read_state", "write_state"} <= mil_ops()
    assert not {"_const_symbolic", "coreml_update_state", "complex_fft"} & mil_ops()
