"""What is fuzzed: bytes in place of one file of a model, whose other files are sound.

A target returns if the bytes were read or refused with one sentence, and raises otherwise. All
warnings are errors: numpy warns of casts that lose a value.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from pytest_ane.mlprogram import blob
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_any, read_model
from pytest_ane.mlprogram.parse import parse, write
from pytest_ane.mlprogram.records import MLModel, Pipeline, TensorType, Value
from tests.fuzz.programs import run_program
from tests.mlprogram.packages import CODES, Program, doubling, model_file, weight_file
from tests.mlprogram.same import differences

Target = Callable[[bytes], None]
TARGETS = ("package", "weights", "text", "metadata", "run")
_LONGEST = 2048
"""Characters of a complaint; more is no sentence."""


def target(name: str, folder: Path) -> Target:
    """A target that writes its files into a folder."""
    makers = {"package": _package, "weights": _weights, "text": _text, "metadata": _metadata}
    return (makers | {"run": _run})[name](folder)


def _package(folder: Path) -> Target:
    """`model.mlmodel`, with the weights present and absent."""
    package = every_dtype().save(folder)

    def run(data: bytes) -> None:
        _replace(model_file(package), data)
        for weights in (False, True):
            with _judged():
                model = read_any(package, weights=weights)
                for part in model.parts if isinstance(model, Pipeline) else [model]:
                    _use(part, load=weights)

    return run


def _weights(folder: Path) -> Target:
    """`weight.bin` under a program that names a blob of every element type."""
    package = every_dtype().save(folder)
    model = read_model(package)

    def run(data: bytes) -> None:
        _replace(weight_file(package), data)
        with _judged():
            blob.check_blobs(model)
        _use(model, load=True)

    return run


def _text(folder: Path) -> Target:
    """`model.mil`; a program that is read is written and read again."""
    compiled = _compiled(folder)

    def run(data: bytes) -> None:
        _replace(compiled / "model.mil", data)
        with _judged():
            model = read_model(compiled, weights=False)
            _use(model, load=False)
            assert differences(parse(write(model.program)), model.program) == []

    return run


def _metadata(folder: Path) -> Target:
    """`metadata.json`, and the same bytes as a package's `Manifest.json`."""
    compiled = _compiled(folder)
    (compiled / "model.mil").write_text(
        "program(1.3) { func main<ios18>(fp32 x, state<tensor<fp16, [2]>> s) { } -> (x); }"
    )
    package = doubling().save(folder)

    def run(data: bytes) -> None:
        _replace(compiled / "metadata.json", data)
        _replace(package / "Manifest.json", data)
        for path in (compiled, package):
            with _judged():
                read_model(path, weights=False)

    return run


def _run(folder: Path) -> Target:
    """`model.mlmodel`, prepared and run under a budget of memory and time."""
    package = doubling().save(folder)

    def run(data: bytes) -> None:
        outcome = run_program(package, data)
        assert outcome == "ran" or outcome.endswith("Error"), outcome

    return run


def every_dtype() -> Program:
    """`y = x + x`, with a blob of every element type that weights files hold."""
    program = doubling()
    for dtype in CODES:
        size = -(-12 * program_bits(dtype) // 8)
        program.blob(dtype.lower(), dtype, (3, 4), bytes(range(size)))
    return program


def program_bits(dtype: str) -> int:
    """Bits of an element, from its name in MIL.proto."""
    return int("".join(c for c in dtype if c.isdigit()))


def _compiled(folder: Path) -> Path:
    compiled = folder / "model.mlmodelc"
    (compiled / "weights").mkdir(parents=True)
    kind = {"modelType": {"name": "MLModelType_mlProgram"}, "specificationVersion": 9}
    (compiled / "metadata.json").write_text(json.dumps([kind]), "utf-8")
    return compiled


def _use(model: MLModel, *, load: bool) -> None:
    """Looks at every constant as forecasts and the executor do."""
    for operation in model.program.walk():
        values = [a for arguments in operation.inputs.values() for a in arguments]
        for value in (*values, *operation.attributes.values()):
            if isinstance(value, Value) and isinstance(value.type, TensorType):
                with _judged():
                    assert blob.byte_size(value) >= 0
                if load:
                    with _judged():
                        _check(value, blob.load(model, value))


def _check(value: Value, array: np.ndarray) -> None:
    if isinstance(value.data, np.ndarray) or array.dtype.kind != "U":
        assert array.dtype.kind in "biuf"
        assert array.shape == value.type.shape  # type: ignore[union-attr]
        array.copy()


def _replace(file: Path, data: bytes) -> None:
    """A new file of its own: one that is mapped must not shrink."""
    fresh = file.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(file)
    _cache()()


@cache
def _cache() -> Callable[[], None]:
    # The time of a file is too coarse for thousands of them in a second.
    return blob._map.cache_clear


class _judged(warnings.catch_warnings):
    """Lets one kind of error pass, if its text is one sentence."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("error")

    def __exit__(self, kind: object, error: object, trace: object) -> bool:  # type: ignore[override]
        super().__exit__(kind, error, trace)
        if not isinstance(error, ProgramError):
            return False
        text = str(error)
        assert text.isprintable(), text
        assert len(text) <= _LONGEST, text
        assert text.endswith((".", "run: git lfs pull")), text
        return True
