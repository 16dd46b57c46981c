"""Pipelines: which models a package lists, and whether each gets all it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import Pipeline


def pipeline_parts(message: Any) -> Sequence[Any] | None:
    """The models of a pipeline, whatever its result is called; None where there is one model."""
    kind = message.WhichOneof("Type")
    if kind == "pipeline":
        return list(message.pipeline.models)
    if kind in ("pipelineClassifier", "pipelineRegressor"):
        return list(getattr(message, kind).pipeline.models)
    return None


def check_pipeline(pipeline: Pipeline, file: Path) -> None:
    """Check that every part's inputs, and the outputs of the whole, come from somewhere.

    Raises:
        ProgramError: names the part and the feature.
    """
    if not pipeline.parts:
        raise ProgramError(f"{file}: is a pipeline of no models.")
    known = {feature.name for feature in pipeline.inputs}
    for i, part in enumerate(pipeline.parts, 1):
        if part.states:
            raise ProgramError(
                f"{file}: part {i} of the pipeline keeps states, which pipelines cannot pass on."
            )
        for feature in part.inputs:
            if feature.name not in known and not feature.optional:
                raise ProgramError(
                    f"{file}: part {i} of the pipeline takes {feature.name!r}, which nothing "
                    "before it gives."
                )
        known |= {feature.name for feature in part.outputs}
    for feature in pipeline.outputs:
        if feature.name not in known:
            raise ProgramError(
                f"{file}: the pipeline declares the output {feature.name!r}, which no part gives."
            )
