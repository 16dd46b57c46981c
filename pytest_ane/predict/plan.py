"""Model structures and compute plans: what runs here, all of it on this machine's CPU.

A plan from here is true of this executor and says nothing of a Mac: every operation that is
computed prefers and supports the CPU, and constants have no device, as in Core ML's own plans.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ane.mil import read_model
from pytest_ane.mil.records import Argument, Block, Function, Named, Operation, Program, Ref


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


class _Plan(_MLComputePlanProxy):
    """A plan for one model, on this machine."""

    def __init__(self, path: Path) -> None:
        self.model_structure = structure(path)
        self._devices = devices()

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        """The CPU for what is computed, None for constants."""
        from coremltools.models.compute_plan import MLComputePlanDeviceUsage

        kind = operation.operator_name
        if kind == "const" or kind.startswith("constexpr_"):
            return None
        return MLComputePlanDeviceUsage(self._devices[0], self._devices)

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> None:
        """Nothing: the older kind of model is not run here."""

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> None:
        """Nothing: costs are not estimated."""


def plan(path: Path) -> Any:
    """A model's plan in coremltools' record.

    Raises:
        ProgramError: the model cannot be read.
    """
    from coremltools.models.compute_plan import MLComputePlan

    return MLComputePlan(_Plan(path))


def devices() -> list[Any]:
    """All compute devices there are: the CPU."""
    from coremltools.models.compute_device import MLCPUComputeDevice

    return [MLCPUComputeDevice(_MLCPUComputeDeviceProxy())]


def structure(path: Path) -> Any:
    """A model's structure in coremltools' records.

    Raises:
        ProgramError: the model cannot be read.
    """
    return structure_of(read_model(path).program)


def structure_of(program: Program) -> Any:
    """A program's structure; `__proxy__` of an operation's record is our own record of it."""
    from coremltools.models import compute_plan as ct

    functions = {name: _function(function) for name, function in program.functions.items()}
    structured = ct.MLModelStructureProgram(functions)
    return ct.MLModelStructure(neuralnetwork=None, program=structured, pipeline=None)


def _function(function: Function) -> Any:
    from coremltools.models import compute_plan as ct

    inputs = [_named(named) for named in function.inputs]
    return ct.MLModelStructureProgramFunction(inputs=inputs, block=_block(function.block))


def _block(block: Block) -> Any:
    from coremltools.models import compute_plan as ct

    return ct.MLModelStructureProgramBlock(
        inputs=[_named(named) for named in block.inputs],
        output_names=list(block.outputs),
        operations=[_operation(op) for op in block.operations],
    )


def _operation(op: Operation) -> Any:
    from coremltools.models import compute_plan as ct

    return ct.MLModelStructureProgramOperation(
        inputs={
            key: ct.MLModelStructureProgramArgument([_binding(a) for a in arguments])
            for key, arguments in op.inputs.items()
        },
        operator_name=op.op,
        outputs=[_named(named) for named in op.outputs],
        blocks=[_block(block) for block in op.blocks],
        __proxy__=op,
    )


def _binding(argument: Argument) -> Any:
    from coremltools.models import compute_plan as ct

    if isinstance(argument, Ref):
        return ct.MLModelStructureProgramBinding(name=argument.name, value=None)
    return ct.MLModelStructureProgramBinding(name=None, value=ct.MLModelStructureProgramValue())


def _named(named: Named) -> Any:
    from coremltools.models import compute_plan as ct

    return ct.MLModelStructureProgramNamedValueType(
        name=named.name, type=ct.MLModelStructureProgramValueType()
    )
