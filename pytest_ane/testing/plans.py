"""Plans of a replayed Mac: where its script places operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pytest_ane.mlprogram.records import Block, MLModel, Operation
from pytest_ane.predict import plan
from pytest_ane.testing.script import Device, DeviceRule, Script

Scope = tuple[tuple[str, int], ...]
_ALLOWED: Mapping[str, tuple[Device, ...]] = {
    "ALL": ("CPU", "GPU", "ANE"),
    "CPU_AND_GPU": ("CPU", "GPU"),
    "CPU_AND_NE": ("CPU", "ANE"),
    "CPU_ONLY": ("CPU",),
}
"""The best of them last."""


@dataclass(frozen=True)
class Usage:
    """Where an operation runs, where it could, and its estimated cost."""

    preferred: Device
    supported: tuple[Device, ...]
    cost: float | None = None


def walk(model: MLModel) -> Iterator[tuple[str, Scope, Operation]]:
    """Every operation with its function and the operations whose blocks it lies in."""
    for name, function in model.program.functions.items():
        for scope, operation in _walk(function.block, ()):
            yield name, scope, operation


def _walk(block: Block, scope: Scope) -> Iterator[tuple[Scope, Operation]]:
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from _walk(nested, (*scope, (operation.name, index)))


def by_rules(script: Script, model: MLModel, units: str) -> dict[Operation, Usage]:
    """The usage of every operation that has a device."""
    usages = {
        op: _usage(script, name, op, units)
        for name, _, op in walk(model)
        if not script.default_function_only or name == model.main.name
    }
    return {op: usage for op, usage in usages.items() if usage is not None}


def _usage(script: Script, function: str, operation: Operation, units: str) -> Usage | None:
    allowed = tuple(d for d in _ALLOWED[units] if d != "ANE" or script.machine.cores)
    if plan.is_constant(operation.op):
        return None
    for rule in script.devices:
        if _matches(rule, function, operation, units):
            if rule.preferred == "none":
                return None
            if rule.preferred == "ANE" and not script.machine.cores:
                break
            supported = allowed if rule.supported is None else rule.supported
            return Usage(rule.preferred, supported, rule.cost)
    return Usage(allowed[-1], allowed)


def _matches(rule: DeviceRule, function: str, operation: Operation, units: str) -> bool:
    return (
        fnmatchcase(operation.name, rule.name)
        and fnmatchcase(operation.op, rule.op)
        and fnmatchcase(function, rule.function)
        and (not rule.units or units in rule.units)
    )


def compute_plan(model: MLModel, usages: Mapping[Operation, Usage], cores: int) -> Any:
    """A model's plan in coremltools' record; operations without a usage have no device."""
    records = devices(cores)

    def usage_of(operation: Operation) -> plan.DeviceUsage | None:
        usage = usages.get(operation)
        if usage is None:
            return None
        supported = [records[device] for device in usage.supported]
        return plan.DeviceUsage(records[usage.preferred], supported, usage.cost)

    return plan.compute_plan(model.program, usage_of)


def devices(cores: int) -> dict[Device, Any]:
    """Coremltools' records of the devices; `cores` are those of the Neural Engine."""
    from coremltools.models import compute_device as ct

    class Engine(plan._MLNeuralEngineComputeDeviceProxy):
        def get_total_core_count(self) -> int:
            return cores

    return {
        "CPU": ct.MLCPUComputeDevice(plan._MLCPUComputeDeviceProxy()),
        "GPU": ct.MLGPUComputeDevice(plan._MLGPUComputeDeviceProxy()),
        "ANE": ct.MLNeuralEngineComputeDevice(Engine()),
    }
