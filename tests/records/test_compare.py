"""The same bytes on several systems: what differs, what is noise, and what is not compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.base import Move
from pytest_ane.gates.fidelity import Comparison as Probed
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.records.compare import Comparison, Difference, FigureChange, Recorded, compare
from tests.records.test_verify import FOUND

SHARD = Shard(model="m", id="L01")
FIDELITY = Fidelity(
    (Probed("gaussian", "g", "y", 1, 1.0, (0.98,), (0,), (), (), 1.0, 0.1,
                relative=(0.1,)),), True, {}
)  # fmt: skip
OLD, NEW = ("macOS 26.1", "25B78"), ("macOS 27.0", "26A100")
ALL = {"a": "ANE", "b": "ANE", "c": "ANE", "d": "ANE"}


def plan(devices: Mapping[str, str | None]) -> Plan:
    operations = [
        PlannedOperation(name, "conv", device)  # type: ignore[arg-type]
        for name, device in devices.items()
    ]
    return Plan(
        "coremltools", (PlannedFunction("main", tuple(operations)),), compute_units="CPU_AND_NE"
    )


def recorded(
    system: tuple[str, str], measurement: Any = None, *, chip: str = "Apple M4", file: str = "",
    gate: str = "placement", units: str = "CPU_AND_NE", **changes: Any,
) -> Recorded:  # fmt: skip
    os, build = system
    more = {"os": os, "os_build": build, "chip": chip, "compute_units": units}
    statement = replace(
        FOUND,
        gate=gate,
        measurement=measurement if measurement is not None else plan(ALL),
        environment={**FOUND.environment, **more},
        **changes,
    )
    name = file or f"{os}-{build}-{chip}-{units}.json"
    return Recorded(Path(name), key_digest(statement.to_json()), statement, SHARD)


def close(cosine: float) -> Any:
    (comparison,) = FIDELITY.comparisons
    return replace(FIDELITY, comparisons=(replace(comparison, cosines=(cosine,)),))


def only(comparison: Comparison) -> Difference:
    (found,) = comparison.compared
    return found


def why(comparison: Comparison) -> dict[str, str]:
    return {one.file.name: one.kind for one in comparison.skipped}


def test_three_operations_that_moved() -> None:
    after = {**ALL, "a": "CPU", "c": "GPU", "d": None}
    found = only(compare([recorded(NEW, plan(after)), recorded(OLD)], "os"))
    assert found.moves == (
        Move("main", "conv", "a", "ANE", "CPU"),
        Move("main", "conv", "c", "ANE", "GPU"),
        Move("main", "conv", "d", "ANE", "none"),
    )
    assert (found.old.name, found.new.name) == ("macOS 26.1 (25B78)", "macOS 27.0 (26A100)")
    assert (found.old.verdict.status, found.new.verdict.status) == ("passed", "failed")
    assert found.is_red
    assert not found.is_confounded


def test_the_same_measurement_differs_in_nothing() -> None:
    found = only(compare([recorded(OLD), recorded(NEW)], "os"))
    assert (found.moves, found.figures, found.is_red) == ((), (), False)


def test_folded_and_absent_operations() -> None:
    folded = replace(plan(ALL).functions[0].operations[0], folded=True, preferred=None)
    functions = (PlannedFunction("main", (folded, *plan(ALL).functions[0].operations[1:3])),)
    found = only(compare([recorded(OLD), recorded(NEW, replace(plan(ALL), functions=functions))],
                         "os"))  # fmt: skip
    assert [(m.name, m.new) for m in found.moves] == [("a", "folded"), ("d", "absent")]


@pytest.mark.parametrize(
    ("change", "kind", "details"),
    [
        ({"files": {"L01/x": "c" * 64}}, "bytes", {""}),
        ({"asked": {"seed": 5}}, "question", {"probes"}),
        ({"units": "ALL"}, "units", {"CPU_AND_NE", "ALL"}),
    ],
)
def test_what_is_of_something_else_is_not_compared(
    change: dict[str, Any], kind: str, details: set[str]
) -> None:
    found = compare([recorded(OLD), recorded(NEW, **change)], "os")
    assert found.compared == ()
    assert [one.kind for one in found.skipped] == [kind, kind]
    assert {one.detail for one in found.skipped} == details


def test_alone() -> None:
    found = compare([recorded(OLD), recorded(("", ""), chip="Apple M1")], "os")
    assert found.compared == ()
    assert {one.detail for one in found.skipped} == {
        "Apple M4, macOS 26.1, CPU_AND_NE", "Apple M1, CPU_AND_NE"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("systems", "pairs"),
    [
        (
            [(f"macOS 26.{n}", "25") for n in (10, 9, 2)],
            [("macOS 26.2 (25)", "macOS 26.9 (25)"), ("macOS 26.9 (25)", "macOS 26.10 (25)")],
        ),
        (
            [("macOS 27.0", "26A10"), ("macOS 27.0", "26A9")],
            [("macOS 27.0 (26A9)", "macOS 27.0 (26A10)")],
        ),
    ],
)
def test_systems_are_compared_in_the_order_of_their_versions(
    systems: list[tuple[str, str]], pairs: list[tuple[str, str]]
) -> None:
    found = compare(map(recorded, systems), "os").compared
    assert [(d.old.name, d.new.name) for d in found] == pairs


def test_systems_with_hostile_names_have_an_order() -> None:
    """Whole numbers of 5,000 digits are none that Python reads."""
    names = ["9" * 5_000, "macOS " + "9" * 5_000, "x" * 10_000, "\u0663\u0664", "macOS 26.1"]
    found = compare([recorded((name, "1"), file=f"{i}") for i, name in enumerate(names)], "os")
    assert len(found.compared) == 4


def test_systems_are_compared_on_one_chip() -> None:
    every = [recorded(s, chip=chip) for s in (OLD, NEW) for chip in ("Apple M1", "Apple M4")]
    found = compare([*every, recorded(OLD, chip="Apple M2")], "os")
    assert [(d.old.machine, d.new.machine) for d in found.compared] == [
        ("Apple M1", "Apple M1"), ("Apple M4", "Apple M4")
    ]  # fmt: skip
    assert why(found) == {"macOS 26.1-25B78-Apple M2-CPU_AND_NE.json": "alone"}


def test_another_chip_confounds() -> None:
    found = only(compare([recorded(OLD, chip="Apple M1"), recorded(NEW)], "os"))
    assert found.is_confounded
    assert (found.old.machine, found.new.machine) == ("Apple M1", "Apple M4")


def test_by_chip() -> None:
    every = [recorded(OLD, plan({**ALL, "a": "GPU"}), chip="Apple M10"), recorded(OLD)]
    found = only(compare(every, "chip"))
    assert (found.old.name, found.new.name) == ("Apple M4", "Apple M10")
    assert found.old.machine == "macOS 26.1 (25B78)"
    assert [(m.name, m.old, m.new) for m in found.moves] == [("a", "ANE", "GPU")]


def test_a_copy_is_no_second_record() -> None:
    """It would make the spread zero, and every difference one beyond the noise."""
    a, b = (close(value) for value in (0.98, 0.9801))
    old, new = recorded(OLD, a, gate="fidelity"), recorded(NEW, b, gate="fidelity")
    found = compare([old, replace(old, file=Path("copy.json")), new], "os")
    assert only(found).old.records == 1
    assert only(found).figures == ()
    assert why(found) == {"copy.json": "copy"}


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ([0.98], [0.9805], False),  # Less than fp16's rounding, 2^-10.
        ([0.98], [0.9815], True),
        ([0.98], [math.nan], True),
        ([math.nan], [math.nan], False),
        ([0.98, 0.97], [0.985], False),  # Nearer than the spread of the one side.
        ([0.98, 0.97], [0.995], True),
        ([0.98, 0.9801], [0.98025], True),  # Records agree more closely than rounding would.
        ([0.97, 0.99], [0.98], False),
    ],
)
def test_noise(old: list[float], new: list[float], moved: bool) -> None:
    sides = [
        [recorded(system, close(value), gate="fidelity", file=f"{system[1]}-{i}.json")
         for i, value in enumerate(values)]
        for system, values in ((OLD, old), (NEW, new))
    ]  # fmt: skip
    found = only(compare([*sides[0], *sides[1]], "os"))
    names = {change.name for change in found.figures}
    assert ("cosine.min" in names) is moved
    assert (found.old.records, found.new.records) == (len(old), len(new))


def test_counts_have_no_noise() -> None:
    found = only(compare([recorded(OLD), recorded(NEW, plan({**ALL, "a": "CPU"}))], "os"))
    changes = {change.name: change for change in found.figures}
    assert changes["ane_ops"] == FigureChange("ane_ops", "", "ops on the ANE", 4, 3, 0.0)
    assert "compute_ops" not in changes


def test_of_several_records_the_worst_verdict_and_what_moved_in_all() -> None:
    """An operation that moves from record to record of one system has not moved with the system."""
    old = [recorded(OLD, file="1.json"), recorded(OLD, plan({**ALL, "a": "CPU"}), file="2.json")]
    found = only(compare([*old, recorded(NEW, plan({**ALL, "a": "CPU", "b": "CPU"}))], "os"))
    assert found.old.verdict.status == "failed"
    assert [m.name for m in found.moves] == ["b"]
    assert not found.is_red


def test_a_verdict_that_is_unproven_does_not_pass() -> None:
    found = only(compare([recorded(OLD), recorded(NEW, plan(dict.fromkeys(ALL)))], "os"))
    assert found.new.verdict.status == "unproven"
    assert found.is_red
