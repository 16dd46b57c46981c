"""What differs between two statements, in lines for people."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from pytest_ane.build.census import Census
from pytest_ane.core.verdict import Gate
from pytest_ane.evidence import changes
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement.plans import Plan
from tests.evidence.makers import (
    BEHAVIOUR,
    COMPRESSION,
    ENVIRONMENT,
    FIDELITY,
    MEASURED,
    PLAN,
    statement,
)


def between(gate: Gate, **changed: Any) -> list[str]:
    """What changes when a statement is recorded anew."""
    return list(changes(statement(gate), statement(gate, **changed)))


@pytest.mark.parametrize("gate", MEASURED)
def test_the_time_alone_is_no_change(gate: Gate) -> None:
    assert between(gate, recorded=datetime(2027, 1, 1, tzinfo=timezone.utc)) == []


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
    changed: Plan = replace(PLAN, functions=(moved,))
    assert between("placement", measurement=changed) == [
        "placement resident -> not resident",
        "ops on ANE 4/4 -> 3/4",
        "ops on GPU 0 -> 1",
        "convolutions on ANE 3/3 -> 2/3",
    ]


def test_fidelity() -> None:
    first, second = FIDELITY.comparisons
    changed: Fidelity = replace(
        FIDELITY,
        comparisons=(replace(first, cosines=(0.999, 0.25)), replace(second, cosines=(0.8, 0.5))),
    )
    assert between("fidelity", measurement=changed) == [
        "cosine min nan -> 0.250000",
        "cosine mean nan -> 0.583000",
        "cosine min at position 0 0.900000 -> 0.800000",
    ]
    assert between("fidelity", measurement=replace(FIDELITY, comparisons=())) == [
        "probes 2 -> 0",
        "cosine min nan -> none",
        "cosine mean nan -> none",
        "cosine min at position 0 0.900000 -> none",
        "finite 0.875 -> none",
        "largest input 21,953.4 -> none",
    ]


def test_what_older_evidence_does_not_have_has_come() -> None:
    first, second = FIDELITY.comparisons
    added = replace(first, contributions=(0.5, 0.75), relative=(0.02, 0.01), residual=9.0)
    changed = replace(FIDELITY, comparisons=(added, second))
    assert between("fidelity", measurement=changed) == [
        "contribution min none -> 0.500000",
        "relative L2 max none -> 0.02",
    ]


def test_a_number_that_is_in_no_figure() -> None:
    first, second = FIDELITY.comparisons
    changed = replace(FIDELITY, comparisons=(replace(first, error_max=0.25), second))
    assert between("fidelity", measurement=changed) == [
        "single numbers differ, their figures do not"
    ]


def test_behaviour() -> None:
    (prompt,) = BEHAVIOUR.prompts
    other = replace(prompt.positions[1], top1=False, rank=2, kl=0.5, centred_cosine=0.75)
    changed: Behaviour = replace(
        BEHAVIOUR,
        prompts=(replace(prompt, positions=(prompt.positions[0], other), greedy=(5, 7)),),
        alone=(("L00", 0.9991),),
    )
    assert between("behaviour", measurement=changed) == [
        "top-1 100.0% -> 0.0%",
        "KL 0.0100 -> 0.5000",
        "centred cosine min 0.9990 -> 0.7500",
        "greedy 1/2 -> 2/2",
        "shard alone min nan -> 0.999100",
    ]


def test_compression() -> None:
    changed: CompressionMeasurement = replace(
        COMPRESSION, size=600_000, census=Census(COMPRESSION.census.weights[1:]), distortions=()
    )
    assert between("compression", measurement=changed) == [
        "bytes 700,000 -> 600,000",
        "weights 3 -> 2",
        "weights compressed 2 -> 1",
        "bytes of weights 172,616 -> 6,152",
        "lowest SNR in dB 23.80 -> none",
    ]


def test_another_subject() -> None:
    assert between("placement", subject="smollm2:L02") == [
        "smollm2:L01 placement -> smollm2:L02 placement"
    ]


def test_what_json_does_not_tell_apart_is_no_change() -> None:
    probes = ({"kind": "gaussian", "count": 2, "seed": 0},)
    assert between("fidelity", asked={"probes": probes, "reference": "float32"}) == []
