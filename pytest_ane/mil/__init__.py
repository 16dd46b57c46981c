"""ML Programs: packages and compiled models as one set of records; weights stay mapped on disk."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.core.digests import check_links
from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.blob import byte_size, load
from pytest_ane.mil.compiled import is_compiled, read_compiled
from pytest_ane.mil.package import read_package
from pytest_ane.mil.records import MLModel, Pipeline

__all__ = ["byte_size", "load", "only_program", "read_any", "read_model"]


def read_model(path: Path | str, *, weights: bool = True, function: str | None = None) -> MLModel:
    """Read an `.mlpackage`, or a compiled `.mlmodelc`.

    Args:
        path: the model's folder.
        function: which function of several, or which part of a pipeline; None for the default one,
            and the whole pipeline.
        weights: check that every weight lies inside its file; False reads structure only, so
            that a model whose weights are absent can still be forecast.

    Raises:
        ProgramError: missing, damaged, hostile, or not an ML Program; says which file and where.
    """
    return only_program(read_any(Path(path), weights=weights, function=function))


def only_program(model: MLModel | Pipeline) -> MLModel:
    """A model that is one ML Program.

    Raises:
        ProgramError: it is a pipeline.
    """
    if isinstance(model, Pipeline):
        raise ProgramError(
            f"{model.path}: is a pipeline of {len(model.parts)} models, not one ML Program; "
            f"choose one of {', '.join(model.programs)}."
        )
    return model


def read_any(
    path: Path, *, weights: bool = True, function: str | None = None
) -> MLModel | Pipeline:
    """Read what `read_model` reads, or a whole pipeline.

    Raises:
        ProgramError: as `read_model`; in a pipeline, of a part too.
    """
    check_links(path)
    read = read_compiled if is_compiled(path) else read_package
    return read(path, weights=weights, function=function)
