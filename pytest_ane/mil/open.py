"""Models on disk, by the kind of their folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.compiled import is_compiled, read_compiled
from pytest_ane.mil.package import parse_package, read_package
from pytest_ane.mil.records import MLModel, Pipeline


def read_model(path: Path | str, *, weights: bool = True, function: str | None = None) -> MLModel:
    """Read an `.mlpackage`, or a compiled `.mlmodelc`.

    Args:
        path: the model's folder.
        function: which function of several; None for the default one.
        weights: check that every weight lies inside its file; False reads structure only, so
            that a model whose weights are absent can still be forecast.

    Raises:
        ProgramError: missing, damaged, hostile, or not an ML Program; says which file and where.
    """
    path = Path(path)
    model = read_any(path, weights=weights, function=function)
    if isinstance(model, Pipeline):
        raise ProgramError(
            f"{path}: is a pipeline of {len(model.parts)} models, not one ML Program; "
            "save its models one by one."
        )
    return model


def read_any(
    path: Path, *, weights: bool = True, function: str | None = None
) -> MLModel | Pipeline:
    """Read what `read_model` reads, or an `.mlpackage` of a pipeline of ML Programs.

    Raises:
        ProgramError: as `read_model`; in a pipeline, of a part too.
    """
    read = read_compiled if is_compiled(path) else read_package
    return read(path, weights=weights, function=function)


def count_operations(path: Path) -> Counter[str]:
    """Operations by type over all functions and nested blocks, constants among them.

    Raises:
        ProgramError: missing, damaged, or not an ML Program.
    """
    if is_compiled(path):
        functions = read_model(path, weights=False).program.functions.values()
        return Counter(op.op for function in functions for op in function.walk())
    _, message = parse_package(path)
    counts: Counter[str] = Counter()
    for function in message.mlProgram.functions.values():
        if function.opset in function.block_specializations:
            counts.update(_types(function.block_specializations[function.opset]))
    return counts


def _types(block: Any) -> Iterator[str]:
    for operation in block.operations:
        yield operation.type.rpartition(".")[2]
        for nested in operation.blocks:
            yield from _types(nested)
