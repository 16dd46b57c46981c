"""What the Neural Engine asks of inputs, outputs and states (KV caches)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pytest_ane.gates.placement.graph import Site
from pytest_ane.gates.placement.rules.base import AUTHORING, OpRule, ProgramRule, Subject
from pytest_ane.mlprogram.records import DType, MLModel, StateType, TensorType

_WIDTH = 32
"""Elements of fp16 in 64 bytes, which rows of ANE tensors are aligned to."""


def _not_half(model: MLModel) -> Iterator[Subject]:
    for function in model.program.functions.values():
        for named in function.inputs:
            kind = named.type.wrapped if isinstance(named.type, StateType) else None
            if kind is not None and kind.dtype is not DType.FP16:
                yield Subject(named.name, "state", f"State `{named.name}` is {kind}, not fp16.")


def _odd_width(model: MLModel) -> Iterator[Subject]:
    for function in model.program.functions.values():
        for named in function.inputs:
            kind = named.type.wrapped if isinstance(named.type, StateType) else None
            if kind is not None and kind.shape and (width := kind.shape[-1] or 0) % _WIDTH:
                yield Subject(
                    named.name, "state",
                    f"State `{named.name}` is {kind}; {width} is no multiple of {_WIDTH}.",
                )  # fmt: skip


def _padded(model: MLModel) -> Iterator[Subject]:
    for function in model.program.functions.values():
        operations = function.block.operations
        results = {named.name: named.type for op in operations for named in op.outputs}
        inputs = [(named.name, named.type, "input") for named in function.inputs]
        outputs = [(name, results.get(name), "output") for name in function.block.outputs]
        for name, kind, what in (*inputs, *outputs):
            if not isinstance(kind, TensorType) or None in kind.shape or not kind.shape:
                continue
            if kind.shape[-1] == 1 and prod(extent or 0 for extent in kind.shape) > _WIDTH:
                why = f"{what.capitalize()} `{name}` is {kind}; each element fills 64 bytes."
                yield Subject(name, what, why)


def _standalone(site: Site) -> str | None:
    if any(named.name in site.graph.updates for named in site.operation.outputs):
        return None
    return "Its result goes into no state."


RULES = (
    OpRule(
        id="R059",
        title="The ANE takes a `slice_update` only where it updates a state.",
        matches="`slice_update` whose result neither a `write_state` nor another `slice_update` "
        "takes",
        ops=frozenset({"slice_update"}),
        why=_standalone,
        outcome="warned",
        grade="B",
        consequence='"Cannot support standalone slice_update": runs on CPU or GPU',
        scope="M series",
        source="Anemll/anemll-profile, README",
        fix="write the result into a state and read it again, or use a one-hot multiply-add",
    ),
)
PROGRAM_RULES = (
    ProgramRule(
        id="R058",
        title="A state whose last axis is no multiple of 32 may fail when it is run.",
        matches="a function input of state type whose last extent is no multiple of 32",
        why=_odd_width,
        outcome="warned",
        grade="C",
        consequence="prediction fails on the ANE; CPU and GPU run it",
        scope="M4 on macOS 15.2: a width of 270 fails where 256 runs",
        source="coremltools #2631 (a reproduction, open); Anemll #27 suspects the same alignment; "
        f"{AUTHORING}: inputs and outputs are aligned to 64 bytes",
        fix="pad the axis to a multiple of 32, or move a longer axis last",
    ),
    ProgramRule(
        id="R061",
        title="States are fp16 only.",
        matches="a function input of state type whose element type is not fp16",
        why=_not_half,
        consequence="conversion or load fails",
        scope="iOS 18, macOS 15 and later",
        source="coremltools guide, Stateful Models; onnxsim/onnxsim, scripts/apple/README.md",
        fix="declare the StateType with dtype=np.float16",
    ),
    ProgramRule(
        id="R107",
        title="Rows of inputs and outputs are padded to 64 bytes, single elements as well.",
        matches="a function input or output of more than 32 elements whose last extent is 1",
        why=_padded,
        outcome="warned",
        consequence="32 times the memory at fp16",
        scope="all",
        source=AUTHORING,
        fix="move a longer axis last",
    ),
)
