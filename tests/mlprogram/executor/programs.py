"""Programs written with coremltools' builder, saved and read back: real packages for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model


def build(
    path: Path, inputs: Sequence[Any], body: Callable[..., Any], target: str = "iOS18"
) -> Path:
    """Convert a function of `mb` and values, without passes that change what it says."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    with converter_notes():
        opset = getattr(ct.target, target)
        program = mb.program(input_specs=list(inputs), opset_version=opset)(body)
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=opset,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        ).save(str(path))
    return path


def session(path: Path, **options: Any) -> Session:
    """A session of a package."""
    return Session(read_model(path), **options)
