"""coremltools' compute-plan JSON, read and written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation, parse_plan
from pytest_ane.gates.placement.plans.coremltools import read, write
from pytest_ane.mlprogram.errors import PlanError
from tests.gates.placement.plans.samples import COREMLTOOLS, info, path


def test_functions_nested_blocks_and_unknown_fields() -> None:
    plan = parse_plan(COREMLTOOLS.encode())
    assert [f.name for f in plan.functions] == ["main", "prefill"]
    first, second, nested = plan.functions[0].operations
    assert first == PlannedOperation(
        "x_cast_fp16", None, "ANE", ("CPU", "GPU", "ANE"), 0.0123, extra={}
    )
    assert (second.name, second.preferred) == ("y", "CPU")
    # The device's app writes `block 0, block 1` for block 1.
    assert (nested.name, nested.scope, nested.cost) == ("body", (("loop", 1),), None)
    assert plan.functions[1].operations[0].extra == {"note": "kept"}
    assert (plan.ane_cores, plan.extra) == (16, {"made": "by hand"})


def test_coremltools_reads_what_is_written() -> None:
    from pytest_ane.make.coremltools_quiet import import_coremltools

    import_coremltools()
    from coremltools.models.ml_program.experimental.remote_device import ComputePlan

    theirs = ComputePlan.from_dict(write(read(json.loads(COREMLTOOLS))))
    names = [p.components[-1].output_name for p in theirs.infos]
    assert names == ["x_cast_fp16", "y", "body", "z"]
    first = next(iter(theirs.infos.values()))
    assert first.device_usage.preferred == ComputePlan.NeuralEngineDevice(16)


_NAMES = st.text(min_size=1, max_size=6)
_OPERATIONS = st.builds(
    PlannedOperation,
    name=_NAMES,
    op=st.none() | st.sampled_from(["conv", "add", "const"]),
    preferred=st.sampled_from(["ANE", "GPU", "CPU"]),
    supported=st.lists(st.sampled_from(["ANE", "GPU", "CPU"]), max_size=3).map(tuple),
    cost=st.none() | st.floats(0, 1),
    scope=st.lists(st.tuples(_NAMES, st.integers(0, 3)), max_size=3).map(tuple),
    boundary=st.booleans(),
    extra=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(), max_size=2),
)


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(_OPERATIONS, min_size=1, max_size=5, unique_by=lambda o: (o.name, o.scope)),
    st.booleans(),
)
def test_any_plan_survives_writing_and_reading(
    operations: list[PlannedOperation], unassigned: bool
) -> None:
    if unassigned:
        operations[-1] = replace(operations[-1], preferred=None, supported=())
    used = {device for one in operations for device in (one.preferred, *one.supported)}
    cores = 16 if "ANE" in used else None
    plan = Plan("coremltools", (PlannedFunction("main", tuple(operations)),), ane_cores=cores)
    assert read(json.loads(json.dumps(write(plan)))) == plan


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, r"infos\[0\]\.path is absent"),
        (info("x", path={"components": [{"neuralNetwork": {}}]}), "neural network or a pipeline"),
        (info("x", path={"components": [{"program": {}}]}), "does not lead"),
        (info("x", path={"components": [{"program": {}}] * 200}), "nested too deeply"),
        (info("x", path={"components": [{}]}), "component of 0 keys"),
        (info("x", deviceUsage={"preferred": {}}), "names 0 of cpu, gpu and neuralEngine"),
        (info("x", deviceUsage={"preferred": {"cpu": {}, "gpu": {}}}), "names 2 of"),
        (info("x", estimatedCost=-1), "estimatedCost is no finite number"),
        (info("x", estimatedCost=True), "estimatedCost is true or false"),
    ],
)
def test_bad_entries_are_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read({"infos": [entry]})


def test_an_operation_on_two_devices_is_refused_and_others_are_told_apart() -> None:
    with pytest.raises(PlanError, match="'x' of 'main' is on ANE and on CPU"):
        read({"infos": [info("x"), info("x", "CPU")]})
    assert len(read({"infos": [info("x"), info("x")]}).functions[0].operations) == 1
    plan = read({"infos": [info("", path=path("")), info("", "CPU", path=path(""))]})
    assert [one.preferred for _, one in plan.walk()] == ["ANE", "CPU"]
