"""What must hold of a model that is read: its files, its names, what it declares, its pipeline."""

from __future__ import annotations

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
    Ref,
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
    names = _Names(where)
    names.scope |= names.distinct(function.inputs)
    names.block(function.block, 0)


class _Names:
    def __init__(self, where: Where) -> None:
        self.where = where
        self.scope: set[str] = set()

    def block(self, block: Block, depth: int) -> None:
        if depth > DEEPEST:
            raise ProgramError(f"{self.where(None)}: blocks nest deeper than {DEEPEST}.")
        mine = self.distinct(block.inputs) - self.scope
        self.scope |= mine
        for operation in block.operations:
            self.operation(operation, depth)
            for output in operation.outputs:
                if output.name in self.scope:
                    raise self.twice(output.name, operation)
                self.scope.add(output.name)
                mine.add(output.name)
        for name in block.outputs:
            if name not in self.scope:
                raise ProgramError(f"{self.where(None)}: its output {name!r} is not defined.")
        # What a nested block defines ends with it.
        self.scope -= mine

    def operation(self, operation: Operation, depth: int) -> None:
        if operation.op == "const" and "val" not in operation.attributes:
            raise ProgramError(f"{self.where(operation)}: a constant holds no value.")
        if operation.op == "const" and (count := len(operation.outputs)) != 1:
            raise ProgramError(f"{self.where(operation)}: a constant has {count} results.")
        for arguments in operation.inputs.values():
            for argument in arguments:
                if isinstance(argument, Ref) and argument.name not in self.scope:
                    says = f"its input {argument.name!r} is not defined before it"
                    raise ProgramError(f"{self.where(operation)}: {says}.")
        for nested in operation.blocks:
            self.block(nested, depth + 1)

    def distinct(self, inputs: Iterable[Named]) -> set[str]:
        names: set[str] = set()
        for named in inputs:
            if named.name in names:
                raise self.twice(named.name, None)
            names.add(named.name)
        return names

    def twice(self, name: str, operation: Operation | None) -> ProgramError:
        return ProgramError(f"{self.where(operation)}: {name!r} is defined twice.")


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
