"""The compiler of a replayed Mac, in this process or as `xcrun coremlcompiler compile`.

How often each step was tried is counted in files, which all processes share.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_ane.mac._script import BUILT_BY, Failure, Point, Rewrite, Script
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.model import read_functions, read_model
from pytest_ane.mlprogram.records import (
    Argument,
    Block,
    DType,
    MLModel,
    Named,
    Operation,
    Program,
    Ref,
    TensorType,
    Value,
)


def compile_model(package: Path, target: Path, script: Script, failures: Failures) -> Path:
    """Compile a package, with the build of macOS that made it; `RuntimeError` where that fails."""
    failures.raise_due("compile", str(package))
    try:
        model = rewritten(read_model(package), script.rewrites)
        write_compiled(model, target, read_functions(package))
    except AneError as error:
        raise RuntimeError(f"Error compiling model: {error}") from error
    (target / BUILT_BY).write_text(json.dumps({"build": script.machine.build}) + "\n")
    return target


def is_constant(op: str) -> bool:
    return op == "const" or op.startswith("constexpr_")


def rewritten(model: MLModel, rewrites: Sequence[Rewrite]) -> MLModel:
    """A model with the changes of a compiler in the blocks of its functions, not in nested ones."""
    functions = {
        name: replace(function, block=_rewritten(function.block, rewrites))
        for name, function in model.program.functions.items()
    }
    return replace(model, program=Program(functions)) if rewrites else model


def _rewritten(block: Block, rewrites: Sequence[Rewrite]) -> Block:
    names: dict[str, str] = {}
    operations: list[Operation] = []
    for operation in block.operations:
        new = replace(operation, inputs=_renamed(operation.inputs, names))
        effects = {r.effect for r in rewrites if fnmatchcase(operation.name, r.name)}
        if not effects or is_constant(operation.op) or operation.name in block.outputs:
            operations.append(new)
        elif "fold" in effects:
            (first, *_), *_ = new.inputs.values()
            assert isinstance(first, Ref), operation.name
            names[operation.name] = first.name
        else:
            operations += _changed(new, effects, names)
    return replace(block, operations=tuple(operations))


def _changed(
    operation: Operation, effects: Collection[str], names: dict[str, str]
) -> Iterator[Operation]:
    (output, *_) = operation.outputs
    if "rename" in effects:
        names[output.name] = f"tmp_{output.name}"
        output = replace(output, name=names[output.name])
        operation = replace(operation, outputs=(output,))
    yield operation
    if "cast" in effects:
        assert isinstance(output.type, TensorType)
        kind = Value(TensorType(DType.STRING), str(output.type.dtype))
        target, result = f"{output.name}_dtype", f"{output.name}_cast"
        yield Operation("const", {}, (Named(target, kind.type),), {"val": kind})
        inputs = {"x": (Ref(output.name),), "dtype": (Ref(target),)}
        yield Operation("cast", inputs, (replace(output, name=result),))
        renamed = [name for name, value in names.items() if value == output.name]
        names.update(dict.fromkeys([operation.name, *renamed], result))


def _renamed(
    inputs: Mapping[str, tuple[Argument, ...]], names: Mapping[str, str]
) -> dict[str, tuple[Argument, ...]]:
    return {
        key: tuple(Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a for a in arguments)
        for key, arguments in inputs.items()
    }


def main(tools: str, package: str, folder: str) -> str | None:
    script = Script.load(tools)
    target = Path(folder) / f"{Path(package).stem}.mlmodelc"
    try:
        compile_model(Path(package), target, script, Failures(script, Path(tools)))
    except RuntimeError as error:
        return f"coremlc: error: {error}"
    print(target / "coremldata.bin")
    return None


class Failures:
    def __init__(self, script: Script, folder: Path) -> None:
        self._build = script.machine.build
        self._failures = script.failures
        self._folder = folder

    def raise_due(self, at: Point, path: str) -> None:
        """Count a question; a failure that is due is a `RuntimeError`, or happens."""
        due = [f for index, f in enumerate(self._failures) if self._due(index, f, at, path)]
        if not due:
            return
        if due[0].effect == "abort":
            os.abort()
        if due[0].effect == "hang":
            while True:
                ctypes.PyDLL(None).pause()  # Of all of ctypes' libraries this one holds the GIL.
        raise RuntimeError(due[0].message.replace("{path}", path))

    def _due(self, index: int, failure: Failure, at: Point, path: str) -> bool:
        if failure.at != at or not fnmatchcase(path, failure.path):
            return False
        mark = Path(path, BUILT_BY)  # No other compiler but the replayed one leaves it.
        if failure.when == "other-build" and (
            not mark.exists() or json.loads(mark.read_bytes())["build"] == self._build
        ):
            return False
        with (self._folder / f"count-{index}").open("ab") as file:
            file.write(b".")
            file.flush()
            count = file.tell() - failure.after
        return count > 0 and (failure.times is None or count <= failure.times)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
