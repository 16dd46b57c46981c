"""Verdicts on plans: what a plan proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ane.gates.placement import judge
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation, summarise
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import PlacementPolicy

CONSTS = tuple(PlannedOperation(f"w{i}", "const") for i in range(44))
LUTS = tuple(PlannedOperation(f"l{i}", "constexpr_lut_to_dense") for i in range(4))


def ops(count: int, op: str, device: str | None = "ANE") -> tuple[PlannedOperation, ...]:
    supported = ("CPU", "ANE")
    return tuple(
        PlannedOperation(f"{op}_{i}", op, device, supported)  # type: ignore[arg-type]
        for i in range(count)
    )


def plan(*operations: PlannedOperation) -> Plan:
    return Plan("coremltools", (PlannedFunction("main", operations),))


def judged(found: Plan) -> Verdict:
    return judge(found, PlacementPolicy(), "zaya1-8b:L01")


def test_every_compute_op_on_the_ane() -> None:
    verdict = judged(plan(*CONSTS, *LUTS, *ops(36, "conv")))
    assert (verdict.status, verdict.basis) == ("passed", "plan")
    assert verdict.values == {
        "instrument": "plan",
        "format": "coremltools",
        "outcome": "resident",
        "ane_ops": 36,
        "compute_ops": 36,
        "gpu_ops": 0,
        "cpu_ops": 0,
        "conv_ane": 36,
        "unassigned_ops": 0,
        "boundary_casts": 0,
        "compile_time_ops": 48,
    }


def test_one_op_on_the_cpu_is_red_and_named() -> None:
    verdict = judged(plan(*ops(33, "conv"), *ops(1, "norm", "CPU")))
    (finding,) = verdict.reasons
    assert (finding.where.op, finding.kind) == ("norm_0", "run on the CPU instead of the ANE")
    assert (verdict.values["ane_ops"], verdict.values["cpu_ops"]) == (33, 1)
    table = verdict.tables[0]
    assert table.rows == (("norm", "norm_0", "main", "CPU", "CPU, ANE"),)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (plan(*ops(77, "mul", "CPU")), "not resident"),
        (plan(*ops(3, "mul", None)), "inconclusive"),
        (plan(*CONSTS), "inconclusive"),
        (plan(), "inconclusive"),
        (plan(*ops(2, "mul"), *ops(1, "add", None)), "not resident"),
        (plan(PlannedOperation("a", None, "ANE")), "inconclusive"),
        (plan(*ops(1, "conv"), PlannedOperation("a")), "inconclusive"),
        (replace(plan(*ops(1, "conv")), unmatched=("q",)), "inconclusive"),
    ],
)
def test_nothing_passes_for_lack_of_evidence(found: Plan, outcome: str) -> None:
    assert summarise(found).outcome == outcome
    assert judged(found).status == ("unproven" if outcome == "inconclusive" else "failed")


def test_boundary_casts_are_counted_apart() -> None:
    cast = PlannedOperation("x16", "cast", "CPU", boundary=True)
    assert summarise(plan(*ops(1, "conv"), cast)).outcome == "resident"
    assert summarise(plan(*ops(1, "conv"), replace(cast, boundary=False))).outcome == "not resident"


def test_no_name_reaches_the_terminal_raw() -> None:
    evil = PlannedOperation("\x1b[2J\n" + "a" * 500, "mul", "GPU")
    verdict = judged(plan(evil, *ops(20, "mul", "CPU")))
    assert len(verdict.reasons) == 21
    assert all(f.where.op.isprintable() and len(f.where.op) <= 200 for f in verdict.reasons)
    assert all(str(cell).isprintable() for row in verdict.tables[0].rows for cell in row)
