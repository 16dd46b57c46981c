"""A plan joined with its program, and counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ane.gates.placement import judge
from pytest_ane.gates.placement.plans import (
    Plan,
    PlannedFunction,
    PlannedOperation,
    join,
    summarise,
)
from pytest_ane.gates.placement.plans._record import Wires
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.records import Block, Named, Operation
from tests.gates.placement.programs import const, full, function, half, model, op


def planned(*operations: tuple[str, str], function: str = "main") -> Plan:
    made = (PlannedOperation(name, None, device) for name, device in operations)
    return Plan("coremltools", (PlannedFunction(function, tuple(made)),))


def of(*operations: PlannedOperation) -> Plan:
    return Plan("coremltools", (PlannedFunction("main", operations),))


def live(*operations: PlannedOperation) -> Plan:
    return replace(of(*operations), complete=True)


PROGRAM = model(
    function(
        const("w", 1.0),
        op("cast", "x16", half(1, 8), x="x"),
        op("conv", "c", half(1, 8), x="x16", weight="w"),
        op("mul", "y", half(1, 8), x="c", y="c"),
        inputs={"x": full(1, 8)},
        outputs=["y"],
    )
)


def test_types_constants_and_boundary_casts_come_from_the_program() -> None:
    found = summarise(join(planned(("y", "ANE"), ("c", "ANE"), ("x16", "CPU")), PROGRAM))
    assert found.outcome == "resident"
    assert (found.conv_ane, found.conv_total, dict(found.devices)) == (1, 1, {"ANE": 2})
    assert (dict(found.compile_time), found.boundary_casts) == ({"const": 1}, 1)
    # What the plan passes over is without a device.
    found = summarise(join(planned(("c", "ANE")), PROGRAM))
    assert (found.outcome, found.unassigned) == ("not resident", 1)
    assert [operation.name for _, operation in found.off] == ["y"]


def test_nothing_of_another_type_or_program_matches() -> None:
    found = join(planned(("c", "ANE"), ("y", "ANE"), ("other", "ANE")), PROGRAM)
    assert found.unmatched == ("other",)
    assert summarise(found).outcome == "inconclusive"
    elsewhere = join(planned(("c", "ANE"), function="prefill"), PROGRAM)
    assert elsewhere.unmatched == ("prefill/c",)
    assert join(of(PlannedOperation("c", "linear", "ANE")), PROGRAM).unmatched == ("c",)


def test_an_operation_of_several_outputs_is_one() -> None:
    split = op("split", "a", half(1, 4), x="x")
    split = replace(split, outputs=(*split.outputs, Named("b", half(1, 4))))
    program = model(function(split, outputs=["a", "b"]))
    for plan in (planned(("a", "ANE"), ("b", "ANE")), planned(("b", "ANE"))):
        joined = join(plan, program)
        assert [one.name for _, one in joined.walk()] == ["a"]
        assert (joined.unmatched, summarise(joined).outcome) == ((), "resident")


def test_nested_blocks_join_by_scope() -> None:
    inner = op("mul", "t", half(1, 8), x="x", y="x")
    branch = Block((), (inner,), ("t",))
    cond = replace(op("cond", "y", half(1, 8), x="x"), blocks=(branch, branch))
    first = PlannedOperation("t", None, "ANE", scope=(("y", 1),))
    second = PlannedOperation("t", None, "CPU", scope=(("y", 0),))
    plan = of(PlannedOperation("y", None, "CPU"), first, second)
    joined = join(plan, model(function(cond, outputs=["y"])))
    assert [(one.scope, one.preferred) for _, one in joined.walk()] == [
        ((), "CPU"), ((("y", 0),), "CPU"), ((("y", 1),), "ANE"),
    ]  # fmt: skip


def test_a_cast_that_the_package_does_not_have_is_tolerated_on_the_ane_alone() -> None:
    """Without what it reads, nobody knows whether it is at the boundary."""

    def joined(device: str) -> Plan:
        cast = PlannedOperation("z", "cast", device)
        (function,) = planned(("c", "ANE"), ("y", "ANE"), ("x16", "CPU")).functions
        return join(of(*function.operations, cast), PROGRAM)

    assert (summarise(joined("ANE")).outcome, joined("ANE").added) == ("resident", {"cast": 1})
    assert (summarise(joined("CPU")).outcome, joined("CPU").unmatched) == ("inconclusive", ("z",))


def test_neither_a_convolution_nor_what_runs_is_folded() -> None:
    (function,) = planned(("y", "ANE"), ("x16", "CPU")).functions
    folded = PlannedOperation("c", "conv", None, folded=True)
    found = summarise(join(of(*function.operations, folded), PROGRAM))
    assert (found.outcome, found.folded) == ("not resident", 0)
    made = replace(PlannedOperation("y", "mul", "CPU"), folded=True)
    plan = of(PlannedOperation("c", "conv", "ANE"), made)
    assert summarise(join(plan, PROGRAM)).outcome == "not resident"


@pytest.mark.parametrize(
    ("names", "outcome", "folded", "compute"),
    [("c", "not resident", 0, 3), ("bc", "resident", 1, 2)],
)
def test_most_of_a_program_cannot_be_folded(
    names: str, outcome: str, folded: int, compute: int
) -> None:
    ops = [op("mul", name, half(1, 8), x="x", y="x") for name in "abc"]
    plan = replace(planned(*((name, "ANE") for name in names)), complete=True)
    found = summarise(join(plan, model(function(*ops, outputs=["c"]))))
    assert (found.outcome, found.folded, found.compute) == (outcome, folded, compute)


def placed(
    name: str, kind: str, device: str, *reads: str, outputs: tuple[str, ...] = ()
) -> PlannedOperation:
    wires = Wires(reads, outputs or (name,))
    return PlannedOperation(name, kind, device, wires=wires)


def test_ops_of_other_names_join_by_their_inputs_and_then_by_their_consumers() -> None:
    """`p` and `q` have the type and the input of each other, and consumers of their own."""
    program = model(
        function(
            op("relu", "a", half(1, 8), x="x"),
            op("mul", "p", half(1, 8), x="a", y="a"),
            op("mul", "q", half(1, 8), x="a", y="a"),
            op("sin", "s", half(1, 8), x="p"),
            op("cos", "y", half(1, 8), x="q"),
            outputs=["s", "y"],
        )
    )
    compiled = (
        placed("a", "relu", "ANE", "x"),
        placed("2", "mul", "ANE", "a", "a"),
        placed("1", "mul", "CPU", "a", "a"),
        placed("s", "sin", "ANE", "1"),
        placed("y", "cos", "ANE", "2"),
    )
    joined = join(live(*compiled), program)
    assert (joined.unmatched, joined.renamed) == ((), 2)
    assert {one.name: one.preferred for _, one in joined.walk() if one.op == "mul"} == {
        "p": "CPU", "q": "ANE",
    }  # fmt: skip


H = half(1, 8)


def split(first: str, second: str, x: str) -> Operation:
    named = tuple(Named(name, half(1, 4)) for name in (first, second))
    return replace(op("split", first, half(1, 4), x=x), outputs=named)


def test_another_operation_with_the_name_of_a_second_output_is_not_lost() -> None:
    program = model(function(split("a", "b", "x"), outputs=["a", "b"]))
    plan = live(
        placed("a", "split", "ANE", "x", outputs=("a", "a2")),
        placed("b", "split", "CPU", "x", outputs=("b", "b2")),
    )
    assert summarise(join(plan, program)).outcome == "inconclusive"
    untyped = planned(("a", "ANE"), ("b", "CPU"))
    assert summarise(join(untyped, program)).outcome == "inconclusive"
    assert summarise(join(planned(("a", "ANE"), ("b", "ANE")), program)).outcome == "resident"


IMAGE = model(
    function(
        const("k", 2.0),
        op("mul", "x__scaled__", H, x="x", y="k"),
        op("conv", "c", H, x="x__scaled__", weight="k"),
        op("mul", "m", H, x="c", y="c"),
        op("relu", "y", H, x="m"),
        inputs={"x": H},
        outputs=["y"],
    )
)


@pytest.mark.parametrize(
    "compiled",
    [
        (("m", "mul", "ANE", "x"), ("c", "conv", "ANE", "m"), ("x__scaled__", "mul", "CPU", "c"),
         ("y", "relu", "ANE", "x__scaled__")),
        (("squared", "mul", "CPU", "x", "x"), ("c", "conv", "ANE", "squared"),
         ("m", "mul", "ANE", "c", "c"), ("y", "relu", "ANE", "m")),
    ],
)  # fmt: skip
def test_an_operation_inside_is_none_of_the_boundary(compiled: tuple[tuple[str, ...], ...]) -> None:
    plan = live(*(placed(*operation) for operation in compiled))
    assert summarise(join(plan, IMAGE)).outcome == "not resident"


def test_what_nothing_writes_was_not_folded() -> None:
    program = model(
        function(
            op("conv", "c", H, x="x", weight="x"),
            op("softmax", "s", H, x="c"),
            op("layer_norm", "n", H, x="s"),
            op("mul", "y", H, x="n", y="n"),
            inputs={"x": H},
            outputs=["y"],
        )
    )
    head, middle, end = (
        (placed("c", "conv", "ANE", "x"),),
        (placed("s", "softmax", "ANE", "c"), placed("n", "layer_norm", "ANE", "s")),
        (placed("y", "mul", "ANE", "n", "n"),),
    )
    assert summarise(join(live(*head, *middle, *end), program)).outcome == "resident"
    assert summarise(join(live(*head, *end), program)).outcome == "not resident"
    assert summarise(join(live(*head, *middle), program)).outcome == "not resident"


CONSTS = tuple(PlannedOperation(f"w{i}", "const") for i in range(44))
LUTS = tuple(PlannedOperation(f"l{i}", "constexpr_lut_to_dense") for i in range(4))


def ops(count: int, op: str, device: str | None = "ANE") -> tuple[PlannedOperation, ...]:
    supported = ("CPU", "ANE")
    return tuple(PlannedOperation(f"{op}_{i}", op, device, supported) for i in range(count))


def judged(found: Plan) -> Verdict:
    return judge(found, PlacementPolicy(), "zaya1-8b:L01")


def test_every_compute_op_on_the_ane_or_one_on_the_cpu() -> None:
    verdict = judged(of(*CONSTS, *LUTS, *ops(36, "conv")))
    assert (verdict.status, verdict.basis) == ("passed", "plan")
    assert verdict.values == {
        "instrument": "plan", "format": "coremltools", "outcome": "resident", "ane_ops": 36,
        "compute_ops": 36, "gpu_ops": 0, "cpu_ops": 0, "conv_ane": 36, "unassigned_ops": 0,
        "boundary_casts": 0, "compile_time_ops": 48, "answer": "on the ANE",
        "by_device": "conv_ane=36/36 conv_non_ane=0",
    }  # fmt: skip
    verdict = judged(of(*ops(33, "conv"), *ops(1, "norm", "CPU")))
    (finding,) = verdict.reasons
    assert (finding.where.op, finding.kind) == ("norm_0", "run on the CPU instead of the ANE")
    assert (verdict.values["ane_ops"], verdict.values["cpu_ops"]) == (33, 1)
    assert verdict.tables[0].rows == (("norm", "norm_0", "main", "CPU", "CPU, ANE", ""),)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (of(*ops(3, "mul", None)), "inconclusive"),
        (of(*CONSTS), "inconclusive"),
        (of(), "inconclusive"),
        (of(*ops(2, "mul"), *ops(1, "add", None)), "not resident"),
        (of(PlannedOperation("a", None, "ANE")), "inconclusive"),
        (of(*ops(1, "conv"), PlannedOperation("a")), "inconclusive"),
        (replace(of(*ops(1, "conv")), unmatched=("q",)), "inconclusive"),
    ],
)
def test_nothing_passes_for_lack_of_evidence(found: Plan, outcome: str) -> None:
    assert summarise(found).outcome == outcome
    assert judged(found).status == ("unproven" if outcome == "inconclusive" else "failed")


def test_no_name_reaches_the_terminal_raw() -> None:
    evil = PlannedOperation("\x1b[2J\n" + "a" * 500, "mul", "GPU")
    verdict = judged(of(evil, *ops(20, "mul", "CPU")))
    assert len(verdict.reasons) == 21
    assert all(f.where.op.isprintable() and len(f.where.op) <= 200 for f in verdict.reasons)
    assert all(str(cell).isprintable() for row in verdict.tables[0].rows for cell in row)
