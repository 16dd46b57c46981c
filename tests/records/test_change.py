"""What differs between two records, in lines for people."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from pytest_ane.records.record import changes
from tests.records.makers import ENVIRONMENT, FIDELITY, MEASURED, PLAN, record


def between(gate: str, **changed: Any) -> list[str]:
    """What changes when something is recorded anew."""
    return list(changes(record(gate), record(gate, **changed)))


@pytest.mark.parametrize("gate", MEASURED)
def test_the_time_alone_is_no_change(gate: str) -> None:
    assert between(gate, time=datetime(2027, 1, 1, tzinfo=timezone.utc)) == []


def test_environment_files_and_question() -> None:
    environment = {**ENVIRONMENT, "os_build": "25C56", "python": "3.12.7"}
    del environment["coremltools"]
    files = {"L01/Manifest.json": "0" * 64, "L01/Data/weights/weight.bin": "2" * 64, "L01/x": "3"}
    asked = {"probes": [{"kind": "gaussian", "count": 8, "seed": 0}], "reference": "float32"}
    assert between("fidelity", environment=environment, files=files, asked=asked) == [
        "2 files changed, of 3",
        "coremltools 9.0 -> none",
        "os_build 25B78 -> 25C56",
        "python none -> 3.12.7",
        "asked probes [{'kind': 'gaussian', 'count': 2, 'seed': 0}] -> "
        "[{'kind': 'gaussian', 'count': 8, 'seed': 0}]",
    ]


def test_a_plan() -> None:
    (main,) = PLAN.functions
    w, y, z = main.operations
    moved = replace(main, operations=(w, replace(y, preferred="GPU"), z))
    assert between("placement", measurement=replace(PLAN, functions=(moved,))) == [
        "outcome resident -> not resident",
        "ane_ops 4 -> 3",
        "gpu_ops 0 -> 1",
        "conv_ane 3 -> 2",
        "by_device conv_ane=3/3 conv_non_ane=0 -> conv_ane=2/3 conv_non_ane=1",
    ]


def test_fidelity() -> None:
    first, second = FIDELITY.comparisons
    changed = replace(
        FIDELITY,
        comparisons=(replace(first, cosines=(0.999, 0.25)), replace(second, cosines=(0.8, 0.5))),
    )
    lines = between("fidelity", measurement=changed)
    assert "cosine.min nan -> 0.25" in lines
    assert "cosine.first.min 0.9 -> 0.8" in lines
    lines = between("fidelity", measurement=replace(FIDELITY, comparisons=()))
    assert "probes 2 -> 0" in lines
    assert "cosine.min nan -> none" in lines


def test_a_number_that_is_in_no_figure() -> None:
    first, second = FIDELITY.comparisons
    changed = replace(FIDELITY, comparisons=(replace(first, error_max=0.25), second))
    assert between("fidelity", measurement=changed) == [
        "single numbers differ, their figures do not"
    ]


def test_another_subject() -> None:
    assert between("placement", subject="smollm2:L02") == [
        "smollm2:L01 placement -> smollm2:L02 placement"
    ]


def test_what_json_does_not_tell_apart_is_no_change() -> None:
    probes = ({"kind": "gaussian", "count": 2, "seed": 0},)
    assert between("fidelity", asked={"probes": probes, "reference": "float32"}) == []
