"""Model structures and compute plans, through coremltools' own records.

A plan from here is true of this executor and says nothing of a Mac: every operation that is
computed prefers and supports the CPU, and constants have no device, as in Core ML's own plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.mlprogram.records import Argument, Block, Named, Operation, Program, Ref


class _MLCPUComputeDeviceProxy:
    """This machine's CPU."""


class _MLGPUComputeDeviceProxy:
    """A GPU; there is none here."""


class _MLNeuralEngineComputeDeviceProxy:
    """A Neural Engine; there is none here."""

    def get_total_core_count(self) -> int:
        """Number of its cores."""
        return 0


class _MLComputePlanProxy:
    """A plan; coremltools derives classes of its own from it."""


@dataclass(frozen=True)
class DeviceUsage:
    """Where an operation runs and where it could, in coremltools' records; its estimated cost."""

    preferred: Any
    supported: Sequence[Any]
    cost: float | None = None


UsageOf = Callable[[Operation], DeviceUsage | None]


class _Plan(_MLComputePlanProxy):
    """A plan for one program."""

    def __init__(self, program: Program, usage_of: UsageOf) -> None:
        self.model_structure = structure(program)
        self._usage_of = usage_of

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        """Coremltools' record of where an operation runs; None for no device."""
        from coremltools.models.compute_plan import MLComputePlanDeviceUsage

        usage = self._usage_of(operation.__proxy__)
        return usage and MLComputePlanDeviceUsage(usage.preferred, list(usage.supported))

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> None:
        """Nothing: the older kind of model is not run here."""

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        """Coremltools' record of an estimated cost; None for none."""
        from coremltools.models.compute_plan import MLComputePlanCost

        usage = self._usage_of(operation.__proxy__)
        return None if usage is None or usage.cost is None else MLComputePlanCost(usage.cost)


def compute_plan(program: Program, usage_of: UsageOf) -> Any:
    """A program's plan in coremltools' record, with the usage of each operation."""
    from coremltools.models.compute_plan import MLComputePlan

    return MLComputePlan(_Plan(program, usage_of))


def cpu_plan(program: Program) -> Any:
    """The plan of this machine: what is computed runs on the CPU."""
    (cpu,) = devices()
    usage = DeviceUsage(cpu, (cpu,))
    return compute_plan(program, lambda operation: None if is_constant(operation.op) else usage)


def is_constant(op: str) -> bool:
    """Whether operations of a type have no device, because nothing runs."""
    return op == "const" or op.startswith("constexpr_")


def devices() -> list[Any]:
    """All compute devices of this machine in coremltools' records: the CPU."""
    from coremltools.models.compute_device import MLCPUComputeDevice

    return [MLCPUComputeDevice(_MLCPUComputeDeviceProxy())]


def structure(program: Program) -> Any:
    """A program's structure in coremltools' records.

    `__proxy__` of an operation's record is our own record of it.
    """
    from coremltools.models import compute_plan as ct

    def named(values: Sequence[Named]) -> list[Any]:
        kind = ct.MLModelStructureProgramValueType()
        return [ct.MLModelStructureProgramNamedValueType(name=v.name, type=kind) for v in values]

    def binding(argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return ct.MLModelStructureProgramBinding(name=argument.name, value=None)
        value = ct.MLModelStructureProgramValue()
        return ct.MLModelStructureProgramBinding(name=None, value=value)

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
