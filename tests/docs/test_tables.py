"""The tables that docs/reference/pytest.md lists are those of verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.behaviour import judge as judge_behaviour
from pytest_ane.gates.compression import judge as judge_compression
from pytest_ane.gates.compression.measure import CompressionMeasurement, Palette
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.fidelity import judge as judge_fidelity
from pytest_ane.gates.fidelity._records import Covered
from pytest_ane.gates.hazards import judge as judge_hazards
from pytest_ane.gates.hazards.measure import Hazards, Peak
from pytest_ane.gates.placement import judge as judge_placement
from pytest_ane.gates.placement.measure import beside_prediction
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.gates.verdict import Table, Verdict
from pytest_ane.manifest.policy import (
    BehaviourPolicy,
    CompressionPolicy,
    FidelityPolicy,
    HazardsPolicy,
    PlacementPolicy,
)
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.weights import Census
from pytest_ane.probes.exact_chain import StackState
from pytest_ane.tools.blame import tables as blame_tables
from tests.docs.pages import ROOT
from tests.gates.behaviour import test_embeddings as encoders
from tests.gates.behaviour import test_judge as behaviour
from tests.gates.compression.test_judge import DENSE
from tests.gates.fidelity.verdicts import comparison
from tests.gates.placement.programs import ints, op
from tests.gates.placement.test_predicted import convs, judged
from tests.gates.throughput import test_judge as throughput
from tests.gates.throughput.runs import speed
from tests.tools.test_blame_words import FOUND

PAGE = ROOT / "docs" / "reference" / "pytest.md"
ROW = re.compile(r"^\| (\w+) \| `([\w.]+)` \| (yes|no) \| (.+) \|$", re.MULTILINE)
BINS = re.compile(r"bin 1, .*bin (\d+)")


def verdicts() -> Iterator[Verdict]:
    """Of every gate, so that each of its tables is in one of them."""
    probe = comparison(*(0.98 + i / 1000 for i in range(9)))
    covered = (Covered("lengths", "9 compared"),)
    yield judge_fidelity(Fidelity((probe,), True, {}, coverage=covered), FidelityPolicy(), "m")
    argsort = op("argsort", "order", ints(1, 64, 32, 32), x="c7")
    yield judged(convs(8, argsort))
    plan = Plan("coremltools", (PlannedFunction("main", planned()),), compute_units="ALL")
    yield judge_placement(beside_prediction(plan, convs(8)), PlacementPolicy(), "m")
    palette = (Palette("w", (0.0, 1.0), (1, 1)),)
    measured = CompressionMeasurement(Census((DENSE,)), 9999, palettes=palette)
    yield judge_compression(measured, CompressionPolicy(), "m", None)
    peak = Peak("sum", "y", "conv", "gaussian", 9.0)
    yield judge_hazards(Hazards((peak,), RuleShares(), 1), HazardsPolicy(), "m")
    drift = (StackState("L00", 0.1, 0.9),)
    stack = Behaviour((behaviour.GOOD,), behaviour.ALONE, {}, drift=drift)
    yield judge_behaviour(stack, BehaviourPolicy(), "m")
    yield encoders.of(encoders.GOOD)
    now = speed(4.0, profile={"block": 0.1})
    yield throughput.judged(now, throughput.against(now))


def planned() -> tuple[PlannedOperation, ...]:
    return tuple(PlannedOperation(f"c{i}", "conv", "CPU", why="small") for i in range(8))


def columns(table: Table) -> str:
    titles = ", ".join(column.title for column in table.columns if column.title)
    return BINS.sub(r"bin 1 to bin \1", titles)


def test_every_table_is_listed_with_its_columns() -> None:
    made = {
        (verdict.gate, table.name): ("yes" if table.listed else "no", columns(table))
        for verdict in verdicts()
        for table in verdict.tables
    }
    made |= {("fidelity", table.name): ("no", columns(table)) for table in blame_tables(FOUND)}
    listed = {(gate, name): (shown, heads) for gate, name, shown, heads in rows()}
    assert listed.keys() == made.keys()
    # Its columns are the metrics that were measured.
    made.pop(("fidelity", "probes"))
    assert {key: listed[key] for key in made} == made


def rows() -> list[tuple[str, str, str, str]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))
