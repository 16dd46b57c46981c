"""Compiled models on disk: the program's text, its weights, and what the compiler says of it.

A `.mlmodelc` folder holds `model.mil` (the program), `weights/weight.bin` (as in a package) and
`metadata.json` (inputs, outputs, states). `coremldata.bin`, whose format is not published, is not
read.
"""

from __future__ import annotations

from pathlib import Path

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.blob import check_blobs
from pytest_ane.mil.boundary import check_boundary
from pytest_ane.mil.files import read_file
from pytest_ane.mil.metadata import Metadata
from pytest_ane.mil.records import Model, Program

_PROGRAM = "model.mil"
_NETWORK = "model.espresso.net"
_KIND = "mlProgram"


def is_compiled(path: Path) -> bool:
    """Whether a folder is a compiled model, by its name or by what lies in it."""
    if path.suffix == ".mlmodelc":
        return True
    return not (path / "Manifest.json").exists() and any(
        (path / name).is_file() for name in (_PROGRAM, _NETWORK)
    )


def read_compiled(path: Path, *, weights: bool = True, function: str | None = None) -> Model:
    """Read an `.mlmodelc`.

    Args:
        path: the compiled model's folder.
        function: which function of several; None for the default one.
        weights: check that every weight lies inside its file.

    Raises:
        ProgramError: missing, damaged, hostile, or not an ML Program; says which file and where.
    """
    if not path.is_dir():
        hint = "it is a file" if path.exists() else "no such folder"
        raise ProgramError(f"{path}: not an .mlmodelc ({hint}).")
    metadata = _metadata(path)
    program = _program(path / _PROGRAM)
    name = function or program.main.name
    if name not in program.functions:
        raise ProgramError(
            f"{path / _PROGRAM}: has no function {name!r}; it has {', '.join(program.functions)}."
        )
    model = Model(
        path=str(path),
        weights=str(path / "weights"),
        specification_version=metadata.specification_version,
        inputs=metadata.features(name, "inputSchema"),
        outputs=metadata.features(name, "outputSchema"),
        states=metadata.features(name, "stateSchema"),
        program=program,
        metadata=metadata.user_defined,
        function=name if len(program.functions) > 1 else "",
    )
    check_boundary(model, metadata.file)
    if weights:
        check_blobs(model)
    return model


def _metadata(path: Path) -> Metadata:
    file = path / "metadata.json"
    kind = "neuralNetwork" if (path / _NETWORK).exists() else _KIND
    try:
        metadata = Metadata(file)
        kind = metadata.kind or kind
    except FileNotFoundError:
        if kind == _KIND:
            raise ProgramError(f"{file}: missing; the compiled model is incomplete.") from None
    if kind != _KIND:
        raise ProgramError(
            f'{path}: is a {kind}, not an ML Program; convert it again with convert_to="mlprogram".'
        )
    return metadata


def _program(file: Path) -> Program:
    # The grammar is made when the first compiled model is read, and not before.
    from pytest_ane.mil.text.parse import parse

    try:
        data = read_file(file)
        return parse(data.decode(), file)
    except FileNotFoundError:
        raise ProgramError(f"{file}: missing; the compiled model is incomplete.") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProgramError(f"{file}:{line}: not UTF-8; the file is damaged.") from None
