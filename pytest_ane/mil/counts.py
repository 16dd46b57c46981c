"""How many operations of each type a model has, without reading more: a millisecond, not 25."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.mil.compiled import is_compiled
from pytest_ane.mil.open import read_model
from pytest_ane.mil.package import parse_package


def count_operations(path: Path) -> Counter[str]:
    """Operations by type over all functions and nested blocks, constants among them.

    Raises:
        ProgramError: missing, damaged, or not an ML Program.
    """
    if is_compiled(path):
        functions = read_model(path, weights=False).program.functions.values()
        return Counter(op.op for function in functions for op in function.walk())
    _, message = parse_package(path)
    found: Counter[str] = Counter()
    for function in message.mlProgram.functions.values():
        if function.opset in function.block_specializations:
            found.update(_types(function.block_specializations[function.opset]))
    return found


def _types(block: Any) -> Iterator[str]:
    for operation in block.operations:
        yield operation.type.rpartition(".")[2]
        for nested in operation.blocks:
            yield from _types(nested)
