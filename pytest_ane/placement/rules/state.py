"""What the Neural Engine asks of states (KV caches)."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.mil.records import DType, Model, StateType
from pytest_ane.placement.rules.base import ProgramRule, Subject


def _not_half(model: Model) -> Iterator[Subject]:
    for function in model.program.functions.values():
        for named in function.inputs:
            kind = named.type.wrapped if isinstance(named.type, StateType) else None
            if kind is not None and kind.dtype is not DType.FP16:
                yield Subject(named.name, "state", f"State `{named.name}` is {kind}, not fp16.")


PROGRAM_RULES = (
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
)
