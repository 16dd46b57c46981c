"""`analytics.mil`, in the form of the public files."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement.plans import join, parse_plan, summarise
from pytest_ane.gates.placement.plans.analytics import path_ms
from pytest_ane.mlprogram.errors import PlanError
from pytest_ane.report.placement import explain_plan
from tests.gates.placement.plans.samples import ANALYTICS
from tests.gates.placement.programs import function, half, model, op

PLAN = parse_plan(ANALYTICS.encode())
OPS = {operation.name: operation for _, operation in PLAN.walk()}


def test_operations_by_the_programs_own_names_without_buffers() -> None:
    assert [(one.op, one.name, one.preferred) for one in OPS.values()] == [
        ("cast", "x16", "CPU"),
        ("sinh", "s", "CPU"),
        ("linear", "l", "ANE"),
        ("split", "a", "ANE"),
        ("concat", "y", "CPU"),
    ]
    assert [one.name for one in OPS.values() if one.boundary] == ["x16"]
    assert OPS["l"].supported == ("CPU", "ANE")


def test_costs_are_shares_and_why_an_op_is_off_is_told() -> None:
    total = 6.462546245913618e-06 + 0.02 + 0.01 + 0.02 + 0.03
    assert OPS["y"].cost == pytest.approx(0.03 / total)
    assert OPS["s"].extra["EstimatedRuntime"] == {"bnns": 0.02, "classic_cpu": 0.02}
    assert OPS["s"].why == 'Unsupported MIL operation "sinh".'
    assert OPS["y"].why == "0.02 ms on ane, 0.03 ms on bnns, 0.03 ms on classic_cpu"
    assert OPS["l"].why == ""
    told = list(explain_plan(PLAN))
    assert told[0] == (
        "conv_ane=0/0 conv_non_ane=0 · compute 2/4 ANE · GPU 0 · CPU 2 · "
        "1 at the boundary or for indices"
    )
    assert any(line.startswith("sinh ") and OPS["s"].why in line for line in told)


def test_the_path_has_launches_switches_and_the_end() -> None:
    placed, most = path_ms(PLAN) or (0, 0)
    assert PLAN.extra["edges_ms"]["Launch_ane_ms"] == 0.125
    work = 6.462546245913618e-06 + 0.02 + 0.01 + 0.02
    assert placed == pytest.approx(work + 0.03 + 3 * 0.125)
    # The first cast on the ANE, sinh off it, the rest on it, and out of it.
    assert most == pytest.approx(0.02 + 0.01 + 0.02 + 0.02 + 5 * 0.125)
    assert "0.4550 ms as placed" in list(explain_plan(PLAN))[-1]
    text = ANALYTICS.replace('{"bnns", 0.02}, ', "")
    assert path_ms(parse_plan(text.encode())) is None


def _package(*names: str) -> object:
    return model(function(*(op("mul", name, half(1, 8), x="x", y="x") for name in names)))


def test_what_the_compiler_added_or_folded_is_no_other_package() -> None:
    joined = join(PLAN, _package("folded", "x16", "s", "l", "y"))
    assert (joined.unmatched, joined.functions) == ((), PLAN.functions)
    other = join(PLAN, _package("x16", "t", "u"))
    assert other.unmatched == ("s", "l", "a", "y")
    assert summarise(other).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('SelectedBackend = string("ane")', 'SelectedBackend = string("npu")', "'npu' is no back"),
        ("SelectedBackend", "Chosen", "without a SelectedBackend"),
        ("fp64(0x1p-3)", "fp64(0xyp-3)", "'0xyp-3' is no number"),
        ('{"ane", 0.01}', '{"ane", -0.01}', "no finite number from 0 on"),
        ("-> (y);", "", "line:"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, words: str) -> None:
    assert old in ANALYTICS
    with pytest.raises(PlanError, match=words):
        parse_plan(ANALYTICS.replace(old, new).encode())
