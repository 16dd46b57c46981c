"""Compute plans in coremltools' own records, and where a script's rules place operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pytest_ane.mac._compiler import is_constant
from pytest_ane.mac._script import Device, DeviceRule, Script
from pytest_ane.mlprogram.records import Argument, Block, MLModel, Named, Operation, Program, Ref

Scope = tuple[tuple[str, int], ...]
_ALLOWED: Mapping[str, tuple[Device, ...]] = {
    "ALL": ("CPU", "GPU", "ANE"),
    "CPU_AND_GPU": ("CPU", "GPU"),
    "CPU_AND_NE": ("CPU", "ANE"),
    "CPU_ONLY": ("CPU",),
}
"""The best of them last."""


class _MLCPUComputeDeviceProxy:
    """A CPU."""


class _MLGPUComputeDeviceProxy:
    """A GPU."""


class _MLNeuralEngineComputeDeviceProxy:
    """A Neural Engine."""

    def __init__(self, cores: int = 0) -> None:
        self._cores = cores

    def get_total_core_count(self) -> int:
        return self._cores


class _MLComputePlanProxy:
    """A plan; coremltools derives classes of its own from it."""


@dataclass(frozen=True)
class Usage:
    preferred: Device
    supported: tuple[Device, ...]
    cost: float | None = None


UsageOf = Callable[[Operation], Usage | None]


class _Plan(_MLComputePlanProxy):
    def __init__(self, program: Program, usage_of: UsageOf, cores: int) -> None:
        self.model_structure = structure(program)
        self._usage_of, self._devices = usage_of, devices(cores)

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        from coremltools.models.compute_plan import MLComputePlanDeviceUsage

        usage = self._usage_of(operation.__proxy__)
        return usage and MLComputePlanDeviceUsage(
            self._devices[usage.preferred], [self._devices[device] for device in usage.supported]
        )

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> None:
        """Nothing: the older kind of model is not run here."""

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        from coremltools.models.compute_plan import MLComputePlanCost

        usage = self._usage_of(operation.__proxy__)
        return None if usage is None or usage.cost is None else MLComputePlanCost(usage.cost)


def compute_plan(program: Program, usage_of: UsageOf, cores: int = 0) -> Any:
    from coremltools.models.compute_plan import MLComputePlan

    return MLComputePlan(_Plan(program, usage_of, cores))


def devices(cores: int = 0) -> dict[Device, Any]:
    """Coremltools' records of the devices; `cores` are those of the Neural Engine."""
    from coremltools.models import compute_device as ct

    return {
        "CPU": ct.MLCPUComputeDevice(_MLCPUComputeDeviceProxy()),
        "GPU": ct.MLGPUComputeDevice(_MLGPUComputeDeviceProxy()),
        "ANE": ct.MLNeuralEngineComputeDevice(_MLNeuralEngineComputeDeviceProxy(cores)),
    }


def structure(program: Program) -> Any:
    """A program in coremltools' records; `__proxy__` of an operation's is our own record of it."""
    from coremltools.models import compute_plan as ct

    def named(values: Sequence[Named]) -> list[Any]:
        kind = ct.MLModelStructureProgramValueType()
        return [ct.MLModelStructureProgramNamedValueType(name=v.name, type=kind) for v in values]

    def binding(argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return ct.MLModelStructureProgramBinding(name=argument.name, value=None)
        return ct.MLModelStructureProgramBinding(name=None, value=ct.MLModelStructureProgramValue())

    def operation(op: Operation) -> Any:
        return ct.MLModelStructureProgramOperation(
            inputs={
                key: ct.MLModelStructureProgramArgument([*map(binding, arguments)])
                for key, arguments in op.inputs.items()
            },
            operator_name=op.op,
            outputs=named(op.outputs),
            blocks=[*map(block, op.blocks)],
            __proxy__=op,
        )

    def block(content: Block) -> Any:
        return ct.MLModelStructureProgramBlock(
            inputs=named(content.inputs),
            output_names=list(content.outputs),
            operations=[*map(operation, content.operations)],
        )

    functions = {
        name: ct.MLModelStructureProgramFunction(inputs=named(f.inputs), block=block(f.block))
        for name, f in program.functions.items()
    }
    structured = ct.MLModelStructureProgram(functions)
    return ct.MLModelStructure(neuralnetwork=None, program=structured, pipeline=None)


def walk(model: MLModel) -> Iterator[tuple[str, Scope, Operation]]:
    """Every operation with its function and the operations whose blocks it lies in."""
    for name, function in model.program.functions.items():
        yield from ((name, scope, op) for scope, op in _walk(function.block, ()))


def _walk(block: Block, scope: Scope) -> Iterator[tuple[Scope, Operation]]:
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from _walk(nested, (*scope, (operation.name, index)))


def by_rules(script: Script, model: MLModel, units: str) -> dict[Operation, Usage]:
    allowed = tuple(d for d in _ALLOWED[units] if d != "ANE" or script.machine.cores)
    usages = {}
    for name, _, op in walk(model):
        if is_constant(op.op) or (script.default_function_only and name != model.main.name):
            continue
        rule = next((r for r in script.devices if _matches(r, name, op, units)), None)
        if rule is None or (rule.preferred == "ANE" and not script.machine.cores):
            usages[op] = Usage(allowed[-1], allowed)
        elif rule.preferred != "none":
            supported = allowed if rule.supported is None else rule.supported
            usages[op] = Usage(rule.preferred, supported, rule.cost)
    return usages


def _matches(rule: DeviceRule, function: str, operation: Operation, units: str) -> bool:
    return (
        fnmatchcase(operation.name, rule.name)
        and fnmatchcase(operation.op, rule.op)
        and fnmatchcase(function, rule.function)
        and (not rule.units or units in rule.units)
    )
