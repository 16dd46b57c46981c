"""The placement measurement: Core ML's own plan (`MLComputePlan`) on a Mac, else a forecast."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from pytest_ane.backends import Backend, CoreMLBackend
from pytest_ane.gates.placement.forecast import Forecast, estimated_work, forecast
from pytest_ane.gates.placement.plans import (
    Plan,
    PlannedFunction,
    PlannedOperation,
    join,
    summarise,
)
from pytest_ane.gates.placement.plans._fields import op_type
from pytest_ane.gates.placement.plans._record import RETRIED, Device, Wires
from pytest_ane.gates.placement.segmenter import Predicted, predict_model
from pytest_ane.make.compress import extract_function
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.mlprogram.errors import ExecutionError, UnprovenError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel, Program


@dataclass(frozen=True)
class PredictedPlan(Plan):
    """A plan beside what was predicted of its program; evidence files hold the plan alone."""

    predictions: tuple[Predicted, ...] = ()


Placement: TypeAlias = Plan | Forecast
"""What is known of where a shard runs."""
_Scope = tuple[tuple[str, int], ...]
_FIRST_WITHOUT = (3, 14)


def measure(backend: Backend, artifact: Path, program: MLModel, *, size_bytes: int) -> Placement:
    """Where an artifact's operations run, by a device's plan, or what the rules say of that.

    `program` is what it holds, or one function of it. `UnprovenError` where there is no ANE that a
    plan could name, or the function has none; other errors are as of `plan_on_device`.
    """
    if isinstance(backend, CoreMLBackend):
        backend.require_ane()
        return beside_prediction(_plan_of_function(backend, artifact, program), program)
    found = forecast(program, size_bytes=size_bytes)
    predictions = predict_model(program)
    return replace(found, predictions=predictions, work=estimated_work(predictions))


def beside_prediction(plan: Plan, program: MLModel) -> PredictedPlan:
    """A plan with predictions: costs with the GPU are public for M4 Pro, without it for M4."""
    predictions: tuple[Predicted, ...] = ()
    if plan.compute_units == "ALL":
        predictions = predict_model(program, "ALL", "M4 Pro")
    elif plan.compute_units in ("CPU_AND_NE", ""):
        predictions = predict_model(program)
    more = {"version": program.specification_version, "predictions": predictions}
    return PredictedPlan(**vars(plan) | more)


def _plan_of_function(backend: CoreMLBackend, artifact: Path, program: MLModel) -> Plan:
    """Core ML's plan of the function that was read of an artifact.

    `getComputePlan` takes no function's name (coremlpython/CoreMLPython.mm), so a plan is of the
    default function; another one is planned in a package of its own, in a temporary folder.
    """
    function = program.function
    if not function or function == read_model(artifact, weights=False).function:
        return plan_on_device(backend, artifact, program)
    if artifact.suffix != ".mlpackage":
        says = f"Core ML plans the default function of a package alone, and not `{function}`"
        raise UnprovenError(f"{says}; give the .mlpackage that it was compiled from")
    with TemporaryDirectory(prefix="pytest-ane-") as folder:
        package = extract_function(artifact, function, Path(folder) / f"{function}.mlpackage")
        plan = plan_on_device(backend, package, read_model(package))
    return replace(plan, functions=tuple(replace(f, name=function) for f in plan.functions))


def plan_on_device(backend: CoreMLBackend, artifact: Path, program: MLModel) -> Plan:
    """Core ML's plan of an artifact, or of the function read of it, joined with its program.

    A plan without any device may be a broken cache: it is read once more from a copy of the
    compiled model at another path. `summarise` calls it inconclusive where that has none either.
    `ExecutionError` where there is no plan to be had.
    """
    if sys.version_info >= _FIRST_WITHOUT:
        here = f"this is {sys.version_info.major}.{sys.version_info.minor}"
        says = "coremltools reads compute plans with Python 3.13 and older"
        raise ExecutionError(f"{artifact}: {says}; {here}.")
    part = program.part
    plan = backend.with_compiled(artifact, lambda path: _settled(backend, artifact, path / part))
    if not program.function:
        return join(plan, program)
    # A plan lists all functions, and may have devices for the default one alone.
    kept = {f.name for f in plan.functions if any(op.preferred for op in f.operations)}
    kept = (kept | {program.function}) & program.program.functions.keys()
    plan = replace(plan, functions=tuple(f for f in plan.functions if f.name in kept))
    functions = {n: f for n, f in program.program.functions.items() if n in kept}
    return join(plan, replace(program, program=Program(functions)))


def _settled(backend: CoreMLBackend, artifact: Path, compiled: Path) -> Plan:
    plan = _load(backend, artifact, compiled)
    if summarise(plan).devices:
        return plan
    backend.say(
        f"{artifact}: no operation has a device; the plan is read once more, from a copy at "
        "another path, in case Core ML's cache is broken."
    )
    with TemporaryDirectory(prefix="pytest-ane-") as folder:
        copy = Path(folder) / compiled.name
        try:
            shutil.copytree(compiled, copy)
        except OSError as error:
            says = f"its compiled model cannot be copied to {folder} to read the plan once more"
            why = f"({error.strerror or error}); free space, or set TMPDIR"
            raise ExecutionError(f"{artifact}: {says} {why}.") from None
        return replace(_load(backend, artifact, copy), extra={RETRIED: True})


def _load(backend: CoreMLBackend, artifact: Path, compiled: Path) -> Plan:
    if compiled.suffix != ".mlmodelc":
        ends = "reading the plan of a model that is not compiled ends the whole process"
        raise ExecutionError(f"{compiled}: is no .mlmodelc; {ends}.")
    return backend.device.run(str(artifact), "planning", load_plan, str(compiled), backend.units)


def load_plan(compiled: str, units: str) -> Plan:
    """Core ML's plan of a `.mlmodelc`, in this process; errors as of `to_record`, or its own."""
    coremltools = import_coremltools()
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(compiled, coremltools.ComputeUnit[units])
    if plan is None:
        raise RuntimeError("Core ML gave neither a plan nor an error.")
    return to_record(plan, units, compiled)


def to_record(plan: Any, units: str, path: str) -> Plan:
    """A `coremltools.models.compute_plan.MLComputePlan` as our record, nested blocks included.

    It is kept until all is read, because its operations hold Core ML's weakly. `ExecutionError` of
    a pipeline or a neural network.
    """
    structure, cores = plan.model_structure, list[int]()
    if structure.program is None:
        what = 'a neural network, not one ML Program; convert it again with convert_to="mlprogram"'
        if structure.pipeline is not None:
            what = "a pipeline, not one ML Program; plan its models one by one"
        raise ExecutionError(f"{path}: is {what}.")

    def walk(block: Any, scope: _Scope) -> Iterator[PlannedOperation]:
        for operation in block.operations:
            planned = _planned(plan, operation, scope, cores)
            yield planned
            key = planned.name or planned.op or ""
            for index, nested in enumerate(operation.blocks):
                yield from walk(nested, (*scope, (key, index)))

    functions = tuple(
        PlannedFunction(name, tuple(walk(function.block, ())))
        for name, function in structure.program.functions.items()
    )
    count = cores[0] if cores else None
    return Plan("coremltools", functions, compute_units=units, ane_cores=count, complete=True)


def _planned(plan: Any, operation: Any, scope: _Scope, cores: list[int]) -> PlannedOperation:
    usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
    cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
    names = tuple(output.name for output in operation.outputs)
    supported = () if usage is None else usage.supported_compute_devices
    preferred = None if usage is None else _device(usage.preferred_compute_device, cores)
    bindings = (b.name for argument in operation.inputs.values() for b in argument.bindings)
    reads = filter(None, bindings)
    return PlannedOperation(
        names[0] if names else "", op_type(operation.operator_name), preferred,
        tuple(_device(device, cores) for device in supported),
        float(cost.weight) if cost is not None and isfinite(cost.weight) else None, scope,
        wires=Wires(tuple(reads), names),
    )  # fmt: skip


def _device(device: Any, cores: list[int]) -> Device:
    """A device; the Neural Engine's cores come along."""
    from coremltools.models import compute_device

    if isinstance(device, compute_device.MLCPUComputeDevice):
        return "CPU"
    if isinstance(device, compute_device.MLGPUComputeDevice):
        return "GPU"
    if isinstance(device, compute_device.MLNeuralEngineComputeDevice):
        cores.append(int(device.total_core_count))
        return "ANE"
    raise ExecutionError(
        f"Core ML's plan names a {type(device).__name__}, which is no CPU, GPU or Neural "
        "Engine that this version knows; update pytest-ane."
    )
