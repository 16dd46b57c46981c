"""What must hold of a model that is read: its files, its names, what it declares, its pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

from pytest_ane.mlprogram.atomic import read_regular
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import (
    Block,
    Function,
    MLModel,
    Named,
    Operation,
    Pipeline,
    StateType,
)

_MOST_BYTES = 1 << 30
"""Model files hold structure; real ones have some MB. protobuf itself stops at 2 GiB."""
_LFS = b"version https://git-lfs"


def read_file(file: Path, most: int = _MOST_BYTES) -> bytes:
    """A file's bytes."""
    try:
        data = read_regular(file, most)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(f"{file}: cannot be read ({reason}).") from None
    if data.startswith(_LFS):
        raise ProgramError(f"{file}: is a Git LFS pointer, not the file; run: git lfs pull")
    return data


def stays_inside(name: str) -> bool:
    """Whether a path written in a package's file stays below the folder it is relative to.

    Judged by the text alone; links are judged by `digests.check_links`.
    """
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or windows.drive or windows.root
    return bool(posix.parts) and not rooted and ".." not in (*posix.parts, *windows.parts)


DEEPEST = 32
"""Blocks, and types, that nest deeper are refused; real ones nest two or three deep."""

Where: TypeAlias = "Callable[[Operation | None], str]"


def check_names(function: Function, where: Where) -> None:
    """Check every name and constant of a function; `where` is what begins a complaint."""
    _check_block(function.block, _distinct(function.inputs, where), 0, where)


def _check_block(block: Block, scope: set[str], depth: int, where: Where) -> None:
    if depth > DEEPEST:
        raise ProgramError(f"{where(None)}: blocks nest deeper than {DEEPEST}.")
    mine = _distinct(block.inputs, where) - scope
    scope |= mine
    for op in block.operations:
        if op.op == "const" and "val" not in op.attributes:
            raise ProgramError(f"{where(op)}: a constant holds no value.")
        if op.op == "const" and (count := len(op.outputs)) != 1:
            raise ProgramError(f"{where(op)}: a constant has {count} results.")
        if unknown := [name for name in op.reads if name not in scope]:
            raise ProgramError(f"{where(op)}: its input {unknown[0]!r} is not defined before it.")
        for nested in op.blocks:
            _check_block(nested, scope, depth + 1, where)
        for output in op.outputs:
            if output.name in scope:
                raise ProgramError(f"{where(op)}: {output.name!r} is defined twice.")
            scope.add(output.name)
            mine.add(output.name)
    if unknown := [name for name in block.outputs if name not in scope]:
        raise ProgramError(f"{where(None)}: its output {unknown[0]!r} is not defined.")
    # What a nested block defines ends with it.
    scope -= mine


def _distinct(inputs: Iterable[Named], where: Where) -> set[str]:
    counts = Counter(named.name for named in inputs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ProgramError(f"{where(None)}: {twice[0]!r} is defined twice.")
    return {*counts}


def check_boundary(model: MLModel, file: Path) -> None:
    """Check that the program has what the model declares: what it lacked could not be bound."""
    function = model.main
    inputs = {i.name: isinstance(i.type, StateType) for i in function.inputs}
    functions = [model.function] if model.function else []
    for word, declared, names in (
        ("function", functions, {*model.program.functions}),
        ("input", [f.name for f in model.inputs], {name for name, s in inputs.items() if not s}),
        ("state", [f.name for f in model.states], {name for name, s in inputs.items() if s}),
        ("output", [f.name for f in model.outputs], {*function.block.outputs}),
    ):
        for name in declared:
            if name not in names:
                says = f"the model declares the {word} {name!r}, which its program does not have"
                raise ProgramError(f"{file}: {says}.")


def check_pipeline(pipeline: Pipeline, file: Path) -> None:
    """Check that every part's inputs, and the outputs of the whole, come from somewhere."""
    if not pipeline.parts:
        raise ProgramError(f"{file}: is a pipeline of no models.")
    available = {feature.name for feature in pipeline.inputs}
    for i, part in enumerate(pipeline.parts, 1):
        where = f"{file}: part {i} of the pipeline"
        if isinstance(part, MLModel) and part.states:
            raise ProgramError(f"{where} keeps states, which pipelines cannot pass on.")
        for name in (feature.name for feature in part.inputs if not feature.optional):
            if name not in available:
                raise ProgramError(f"{where} takes {name!r}, which nothing before it gives.")
        available |= {feature.name for feature in part.outputs}
    for feature in pipeline.outputs:
        if feature.name not in available:
            says = f"the pipeline declares the output {feature.name!r}, which no part gives"
            raise ProgramError(f"{file}: {says}.")
