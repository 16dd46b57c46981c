"""What a plan proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ane.gates.placement.plans import (
    Plan,
    PlannedFunction,
    PlannedOperation,
    explain,
    judge,
    summarise,
)

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


def test_the_line_of_the_notes() -> None:
    verdict = judge(plan(*CONSTS, *LUTS, *ops(36, "conv")), subject="zaya1-8b:L01")
    assert verdict.summary == (
        "conv_ane=36/36 conv_non_ane=0 · compute 36/36 ANE · GPU 0 · CPU 0 · "
        "48 compile-time (44 const, 4 constexpr_lut_to_dense)"
    )
    assert (verdict.status, verdict.reasons) == ("passed", ())


def test_one_op_on_the_cpu_is_red_and_named() -> None:
    verdict = judge(plan(*ops(33, "conv"), *ops(1, "norm", "CPU")), subject="m:L01")
    assert verdict.status == "failed"
    assert verdict.reasons == ("1 operation is not on the ANE, of 34.",)
    assert verdict.summary == (
        "1 operation is not on the ANE, of 34 · conv_ane=33/33 conv_non_ane=0 · "
        "compute 33/34 ANE · GPU 0 · CPU 1"
    )
    assert verdict.details == ("  norm `norm_0`: CPU (supported: CPU, ANE)",)


@pytest.mark.parametrize(
    ("found", "outcome", "words"),
    [
        (plan(*ops(77, "mul", "CPU")), "not resident", "77 operations are not on the ANE, of 77"),
        (plan(*ops(3, "mul", None)), "inconclusive", "broken cache"),
        (plan(*CONSTS), "inconclusive", "places no compute op"),
        (plan(), "inconclusive", "places no compute op"),
        (plan(*ops(2, "mul"), *ops(1, "add", None)), "not resident", "without a device"),
        (plan(PlannedOperation("a", None, "ANE")), "inconclusive", "give --package"),
        (
            plan(*ops(1, "conv"), PlannedOperation("a")),
            "inconclusive",
            "constants are among such",
        ),
        (replace(plan(*ops(1, "conv")), unmatched=("q",)), "inconclusive", "not in the package"),
    ],
)
def test_nothing_passes_for_lack_of_evidence(found: Plan, outcome: str, words: str) -> None:
    summary = summarise(found)
    assert summary.outcome == outcome
    assert words in summary.reasons[0]
    assert judge(found, subject="m:L01").status != "passed"


def test_boundary_casts_are_counted_apart() -> None:
    cast = PlannedOperation("x16", "cast", "CPU", boundary=True)
    assert summarise(plan(*ops(1, "conv"), cast)).outcome == "resident"
    assert summarise(plan(*ops(1, "conv"), replace(cast, boundary=False))).outcome == "not resident"


def test_many_are_counted_and_no_name_reaches_the_terminal_raw() -> None:
    evil = PlannedOperation("\x1b[2J\n" + "a" * 500, "mul", "GPU")
    verdict = judge(plan(evil, *ops(20, "mul", "CPU")), subject="m:L01")
    assert verdict.details[-1] == "  ... and 11 more"
    lines = list(explain(plan(evil)))
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert lines[1] == "not resident (plan, coremltools)"
