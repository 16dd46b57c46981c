"""ML Programs: packages and compiled models as one set of records; weights stay mapped on disk."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.mlprogram.compiled import (
    compiled_functions,
    is_compiled,
    part_folders,
    read_compiled,
)
from pytest_ane.mlprogram.digests import check_links
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.package import package_functions, parse_package, pipeline_of, read_package
from pytest_ane.mlprogram.records import MLModel, Pipeline

SUFFIXES = (".mlpackage", ".mlmodelc")
"""Of packages, and of what Core ML compiles them to."""


def entry_points(path: Path) -> tuple[str, ...]:
    """Names of a model's functions where it has several, else none; weights are not looked at.

    Of a pipeline, names of its ML Programs, even of a single one.
    """
    check_links(path)
    names = (compiled_functions if is_compiled(path) else package_functions)(path)
    return names if len(names) > 1 or is_pipeline(path) else ()


def is_pipeline(path: Path) -> bool:
    """Whether a model is a pipeline; errors as of `entry_points`."""
    if is_compiled(path):
        return bool(part_folders(path))
    return pipeline_of(parse_package(path)[1]) is not None


def counterpart(path: Path, function: str | None) -> str | None:
    """The function of a model that another model's function is compared with.

    It is the one of the same name of several (`ProgramError` where none has it), else the only one.
    """
    names = entry_points(path)
    if function is None or not names:
        return None
    if function not in names:
        says = f"has no function {function!r} to compare with; it has {', '.join(names)}"
        raise ProgramError(f"{path}: {says}.")
    return function


def read_functions(path: Path) -> tuple[MLModel, ...]:
    """A model of several functions, read for each of them; nothing where there is one."""
    return tuple(read_model(path, weights=False, function=name) for name in entry_points(path))


def read_model(path: Path | str, *, weights: bool = True, function: str | None = None) -> MLModel:
    """Read an `.mlpackage`, or a compiled `.mlmodelc`.

    Args:
        path: the model's folder.
        function: which function of several, read without the others, or which program of a
            pipeline; None for all of them, of which the default one runs, and the whole pipeline.
        weights: check that every weight lies inside its file; False reads structure only, so
            that a model whose weights are absent can still be forecast.

    Raises:
        ProgramError: missing, damaged, hostile, or not an ML Program; says which file and where.
    """
    return only_program(read_any(Path(path), weights=weights, function=function))


def only_program(model: MLModel | Pipeline) -> MLModel:
    """A model that is one ML Program; `ProgramError` of a pipeline."""
    if isinstance(model, Pipeline):
        says = f"is a pipeline of {len(model.parts)} models, not one ML Program; choose one of"
        raise ProgramError(f"{model.path}: {says} {', '.join(model.programs)}.")
    return model


def read_any(
    path: Path, *, weights: bool = True, function: str | None = None
) -> MLModel | Pipeline:
    """Read what `read_model` reads, or a whole pipeline; errors as there, of a part too."""
    check_links(path)
    read = read_compiled if is_compiled(path) else read_package
    return read(path, weights=weights, function=function)
