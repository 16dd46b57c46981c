"""Plans of a replayed Mac, through coremltools' own records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pytest_ane.mil.records import Block, Model, Operation
from pytest_ane.predict import plan
from pytest_ane.testing.script import Device, Devices, Script

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


def compile_time(op: str) -> bool:
    """Whether operations of a type have no device because nothing runs."""
    return op == "const" or op.startswith("constexpr_")


def walk(model: Model) -> Iterator[tuple[str, Scope, Operation]]:
    """Every operation with its function and the operations whose blocks it lies in."""
    for name, function in model.program.functions.items():
        for scope, operation in _walk(function.block, ()):
            yield name, scope, operation


def _walk(block: Block, scope: Scope) -> Iterator[tuple[Scope, Operation]]:
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from _walk(nested, (*scope, (operation.name, index)))


def by_rules(script: Script, model: Model, units: str) -> dict[Operation, Usage]:
    """The usage of every operation that has a device."""
    found = {op: _usage(script, name, op, units) for name, _, op in walk(model)}
    return {op: usage for op, usage in found.items() if usage is not None}


def _usage(script: Script, function: str, operation: Operation, units: str) -> Usage | None:
    allowed = _ALLOWED[units]
    if compile_time(operation.op):
        return None
    for rule in script.devices:
        if _matches(rule, function, operation, units):
            if rule.preferred == "none":
                return None
            supported = allowed if rule.supported is None else rule.supported
            return Usage(rule.preferred, supported, rule.cost)
    return Usage(allowed[-1], allowed)


def _matches(rule: Devices, function: str, operation: Operation, units: str) -> bool:
    return (
        fnmatchcase(operation.name, rule.name)
        and fnmatchcase(operation.op, rule.op)
        and fnmatchcase(function, rule.function)
        and (not rule.units or units in rule.units)
    )


class _Plan(plan._MLComputePlanProxy):
    """A plan for one model."""

    def __init__(self, model: Model, usages: Mapping[Operation, Usage], cores: int) -> None:
        self.model_structure = plan.structure_of(model.program)
        self._usages = usages
        self._devices = devices(cores)

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        """Coremltools' record of where an operation runs; None for no device."""
        from coremltools.models.compute_plan import MLComputePlanDeviceUsage

        usage = self._usages.get(operation.__proxy__)
        if usage is None:
            return None
        return MLComputePlanDeviceUsage(
            self._devices[usage.preferred], [self._devices[one] for one in usage.supported]
        )

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> None:
        """Nothing: the older kind of model is not replayed."""

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        """Coremltools' record of an estimated cost; None for none."""
        from coremltools.models.compute_plan import MLComputePlanCost

        usage = self._usages.get(operation.__proxy__)
        return None if usage is None or usage.cost is None else MLComputePlanCost(usage.cost)


def compute_plan(model: Model, usages: Mapping[Operation, Usage], cores: int) -> Any:
    """A plan in coremltools' record."""
    from coremltools.models.compute_plan import MLComputePlan

    return MLComputePlan(_Plan(model, usages, cores))


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
