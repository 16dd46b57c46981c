"""Each hazard fires on a program that meets it, and its rewrite silences it."""

from __future__ import annotations

from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import pytest

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.gates.hazards import Hazards, Peak, judge, measure
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.manifest.policy import HazardsPolicy
from pytest_ane.mlprogram.arithmetic import SIMULATED, RuleShares
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.probes.cases import package_case
from tests.gates.hazards import programs
from tests.gates.hazards.programs import Inputs, hazards
from tests.gates.placement.programs import const, half, op, value

Made: TypeAlias = "tuple[MLModel, Inputs]"


def verdict(made: Made, **policy: Any) -> Verdict:
    return judge(hazards(*made), HazardsPolicy(**policy), "m:L00")


def met(made: Made, **policy: Any) -> list[Finding]:
    return [f for f in verdict(made, **policy).findings if f.severity in ("failed", "warned")]


CASES = {
    "overflow": (programs.overflow(early=False), programs.overflow(early=True), "failed",
                 "32 outputs overflowed", "power of two"),
    "order": (programs.overflow(cancels=True, early=False),
              programs.overflow(cancels=True, early=True), "failed",
              "32 outputs may overflow", "power of two"),
    "query": (programs.query(folded=True), programs.query(folded=False), "warned",
              "of the products are dropped", "multiply the scores by it"),
    "attention": (programs.attention(late=False), programs.attention(late=True), "warned",
                  "of the products are dropped", "normalize after P @ V"),
    "silu": (programs.gated(by_table=True), programs.gated(by_table=False), "warned",
             "the table's error is", "0.5 * tanh(x / 2) + 0.5"),
    "softplus": (programs.softplus("one"), programs.softplus("stable"), "failed",
                 "exp(x) + 1 reaches", "relu(x) + log(1 + exp(-|x|))"),
    "composed softplus": (programs.softplus("composed"), programs.softplus("stable"), "failed",
                          "exp(x) + 1 reaches", "relu(x) + log(1 + exp(-|x|))"),
    "hidden softplus": (programs.softplus("hidden"), programs.softplus("stable"), "failed",
                        "exp(x) + 1 reaches", "relu(x) + log(1 + exp(-|x|))"),
    "logsumexp": (programs.logsumexp("one"), programs.logsumexp("stable"), "failed",
                  "the sum of exp(x) reaches", "subtract the maximum"),
    "composed logsumexp": (programs.logsumexp("composed"), programs.logsumexp("stable"), "failed",
                           "the sum of exp(x) reaches", "subtract the maximum"),
    "infinity": (programs.masked(-np.inf), programs.masked(-1e4), "failed",
                 "4 operands are infinite or NaN", "-1e4 in a mask"),
    "late scale": (programs.integers(early=False), programs.integers(early=True), "warned",
                   "the largest |sum| of integer codes is 64,000, beyond 32,768", "palette"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_hazard_fires_and_its_rewrite_silences_it(name: str) -> None:
    wrong, right, severity, reason, remedy = CASES[name]
    finding = met(wrong)[0]
    assert finding.severity == severity
    assert reason in finding.reason
    assert remedy in finding.remedy
    assert finding.reason.startswith(f"{SIMULATED}: {finding.where.op} (")
    assert finding.where.probe == "probe"
    assert met(right) == []
    expected = programs.exact(*wrong)
    np.testing.assert_allclose(programs.exact(*right), expected, rtol=2e-3, atol=1e-5)


def test_infinities_of_an_overflow_are_named_there_alone() -> None:
    made, inputs = programs.overflow(early=False)
    last = op("add", "y", half(1, 8, 1, 4), x="down", y="down")
    operations = made.main.block.operations
    assert [f.where.op for f in met((programs.program(inputs, *operations, last), inputs))] == [
        "down"
    ]


def test_what_stress_loses_does_not_count() -> None:
    stressed = hazards(*programs.gated(by_table=True), kind="massive")
    assert [p.hazard for p in stressed.peaks] == []
    overflowed = hazards(*programs.overflow(early=False), kind="massive")
    assert [p.hazard for p in overflowed.peaks] == ["sum"]


def test_a_right_program_passes_with_figures_and_near_the_limit_is_warned() -> None:
    made = verdict(programs.integers(early=True))
    assert made.status == "passed"
    assert made.basis == SIMULATED
    assert made.values["sum.max"] == 31.25
    assert made.values["dropped.max"] == 0
    assert made.values["products.inferred"] == 1
    assert {f.name: f.limit for f in made.figures if f.limit} == {
        "sum.max": 32768, "dropped.max": 0.1,
    }  # fmt: skip
    (finding,) = met(programs.attention(late=False), max_dropped_weight=0.005)
    assert (finding.severity, finding.figure) == ("failed", "dropped.max")
    # A sixteenth of 40,000, which is 13.1 times below the limit.
    wrong = programs.overflow(early=True)
    assert met(wrong) == []
    with patch.dict(judge.__globals__, {"_NEAR": 14.0}):
        (finding,) = met(wrong)
    assert (finding.severity, finding.where.op) == ("warned", "down")
    assert "the largest |sum| is 2,500, within a factor of 14 of 32,768" in finding.reason


def test_what_only_moves_passes_and_what_has_no_rule_is_unproven() -> None:
    inputs = {"x": programs.normal(0, 2, 3)}
    made = programs.program(inputs, op("identity", "y", half(2, 3), x="x"))
    moved = verdict((made, inputs))
    assert moved.status == "passed"
    assert [f.reason for f in moved.findings] == [
        "The program only moves numbers, so the ANE's arithmetic has no part in it"
    ]
    inputs = {"x": programs.normal(0, 2, 3)}
    made = programs.program(inputs, op("sin", "y", half(2, 3), x="x"))
    (finding,) = verdict((made, inputs)).findings
    assert finding.severity == "unproven"
    assert finding.reason == "No operation has a known rule of the ANE's arithmetic: sin"
    assert judge(Hazards((), RuleShares(), 0), HazardsPolicy(), "m:L00").status == "unproven"


def peak(measured: Hazards, hazard: str, name: str) -> Peak:
    (found,) = [p for p in measured.peaks if (p.hazard, p.op) == (hazard, name)]
    return found


def test_the_worst_probe_is_named() -> None:
    made, inputs = programs.overflow(early=True)
    cases = [
        package_case("gaussian", f"#{factor}", [{"x": inputs["x"] * np.float16(factor)}], [])
        for factor in (1, 2, 0.5)
    ]
    measured = measure(CpuRunner(Session(made, arithmetic="ane")), cases, {})
    assert measured.probes == 3
    worst = peak(measured, "sum", "down")
    assert (worst.probe, worst.value) == ("#2", 5000)
    assert measured.rules.operations == {"recorded": 9}


def test_shares_are_of_all_calls_of_a_probe() -> None:
    """Of 1 and 2^-14, times 2^-3, the second product is dropped; of 1 and 1 none."""
    inputs = {"x": np.array([[1, 2**-14]], np.float16)}
    made = programs.program(
        inputs,
        const("w", np.full((1, 2), 2**-3, np.float16)),
        op("linear", "y", half(1, 1), x="x", weight="w"),
    )
    calls = [inputs, {"x": np.ones((1, 2), np.float16)}]
    case = package_case("gaussian", "probe", calls, [])
    lost = peak(measure(CpuRunner(Session(made, arithmetic="ane")), [case], {}), "dropped", "y")
    assert lost.count == 1 / 4
    assert lost.value == pytest.approx(2**-17 / (3 * 2**-3 + 2**-17))


def test_groups_and_strides() -> None:
    inputs = {"x": programs.normal(0, 1, 8, 1, 6, deviation=2**-6)}
    weight = programs.normal(1, 6, 4, 1, 1, deviation=2**-10)
    conv = op("conv", "y", half(1, 6, 1, 3), x="x", weight="w", groups=value(2),
              strides=value([1, 2]))  # fmt: skip
    made = programs.program(inputs, const("w", weight), conv)
    lost = peak(programs.hazards(made, inputs), "dropped", "y")
    x = np.abs(inputs["x"][0, :, 0, ::2].astype(np.float64)).reshape(2, 1, 4, 3)
    w = np.abs(weight.astype(np.float64)).reshape(2, 3, 4, 1)
    exponents = sum(np.maximum(np.frexp(n)[1] - 1, -14) for n in (x, w))
    dropped = exponents <= -17
    assert 0 < dropped.sum() < dropped.size
    assert lost.count == dropped.mean()
    assert lost.value == pytest.approx((w * x)[dropped].sum() / (w * x).sum())


def test_a_weight_that_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"x": programs.normal(0, 3, 8)}
    weight = programs.normal(1, 5, 8, deviation=2**-9)
    made = programs.program(
        inputs, const("w", weight), op("linear", "y", half(3, 5), x="x", weight="w")
    )

    def rows(start: int, stop: int, out: Array) -> Array:
        out[:] = weight[start:stop]
        return out

    streamed = StreamedWeight(weight.shape, np.float32, rows)
    (operation,) = (o for o in made.main.block.operations if o.op == "const")
    session = Session(made, arithmetic="ane", overrides={operation: streamed})
    monkeypatch.setattr("pytest_ane.mlprogram.executor.weights._AT_ONCE", 16)
    case = package_case("gaussian", "probe", [inputs], [])
    measured = measure(CpuRunner(session), [case], {})
    assert measured.peaks == programs.hazards(made, inputs).peaks
    assert peak(measured, "dropped", "y").count > 0
