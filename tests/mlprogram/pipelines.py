"""Pipelines written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.mlprogram.packages import Program


def stage(x: str, y: str, factor: float, *, shape: tuple[int, ...] = (1, 2)) -> Program:
    """`y = factor * x`."""
    program = Program()
    program.input(x, shape)
    program.const("factor", factor, "FLOAT32")
    program.op("mul", y, shape=shape, x=x, y="factor")
    program.output(y)
    return program


def shifting(x: str, y: str, shift: Sequence[float]) -> Program:
    """`y = x + shift`, the shift among the weights."""
    program = Program()
    program.input(x, (1, 2))
    program.blob("shift", "FLOAT32", (1, 2), np.array([shift], np.float32).tobytes(),
                 file="@model_path/weights/1-weight.bin")  # fmt: skip
    program.op("add", y, shape=(1, 2), x=x, y="shift")
    program.output(y)
    return program


def chain(
    *parts: Program, inputs: Sequence[Any], outputs: Sequence[Any], kind: str = "pipeline"
) -> Program:
    """A pipeline of parts; `inputs` and `outputs` are the features' descriptions."""
    whole = Program()
    whole.model.ClearField("mlProgram")
    for where, features in (
        (whole.model.description.input, inputs),
        (whole.model.description.output, outputs),
    ):
        for feature in features:
            where.add().CopyFrom(feature)
    message = getattr(whole.model, kind)
    message.SetInParent()
    message = message if kind == "pipeline" else message.pipeline
    for part in parts:
        message.models.add().CopyFrom(part.model)
    return whole


def given(part: Program) -> Any:
    """The description of a part's first input."""
    return part.model.description.input[0]


def made(part: Program) -> Any:
    """The description of a part's first output."""
    return part.model.description.output[0]


def three(kind: str = "pipeline") -> Program:
    """`c = 2 x + (1, 2)`, `d = 3 b`, where `b = 2 x` passes from part to part."""
    parts = stage("x", "b", 2), shifting("b", "c", (1, 2)), stage("b", "d", 3)
    whole = chain(
        *parts, inputs=[given(parts[0])], outputs=[made(parts[1]), made(parts[2])], kind=kind
    )
    whole.weights = parts[1].weights
    return whole
