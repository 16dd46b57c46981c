"""Arrays in files: `--input` and `--out`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.interface import open_picture, to_pixels
from pytest_ane.mlprogram.records import MLModel, Pipeline

_PICTURE = ".png"


def read_inputs(texts: Iterable[str]) -> dict[str, Any]:
    """Inputs by name, from `name=file.npy`, `name=picture.png` or `all.npz`.

    Raises:
        ExecutionError: a file that is missing, or no array; pickles are refused.
    """
    inputs: dict[str, Any] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        if separator:
            inputs[name] = _read(Path(file))
        elif text.endswith(".npz"):
            inputs |= _load(Path(text))
        else:
            raise ExecutionError(
                f"--input {text}: give NAME=FILE.npy, or a FILE.npz of all inputs."
            )
    return inputs


def _read(path: Path) -> Any:
    if path.suffix == ".npy":
        return _load(path)
    try:
        return open_picture(path)
    except ValueError as error:
        raise ExecutionError(f"{path}: is no .npy file, and {error}.") from None


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
            return dict(array) if isinstance(array, np.lib.npyio.NpzFile) else array
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise ExecutionError(f"{path}: cannot be read as arrays ({error}).") from None


def output_files(targets: Sequence[str], outputs: Sequence[str]) -> dict[str, list[Path]]:
    """The files of each result: `--out y.npy`, `name=y.npy`, or `all.npz` for all.

    Raises:
        ExecutionError: `--out y.npy` for a model of several outputs, or another kind of file.
    """
    files: dict[str, list[Path]] = {}
    for target in targets:
        name, separator, file = target.partition("=")
        path = Path(file if separator else target)
        if path.suffix not in (".npy", ".npz", _PICTURE):
            raise ExecutionError(
                f"--out {target}: give a file ending in .npy or .npz, or {_PICTURE} for an image."
            )
        if separator or (path.suffix != ".npz" and len(outputs) == 1):
            files.setdefault(name if separator else outputs[0], []).append(path)
        elif path.suffix == ".npz":
            for output in outputs:
                files.setdefault(output, []).append(path)
        else:
            raise ExecutionError(
                f"--out {target}: the model gives {', '.join(outputs)}; "
                "say which with NAME=FILE.npy, or write all into one FILE.npz."
            )
    return files


def write_outputs(files: Mapping[str, list[Path]], results: Mapping[str, Any]) -> None:
    """Write results into their files.

    Raises:
        ExecutionError: a file cannot be written, or a result is no array.
    """
    together: dict[Path, dict[str, Any]] = {}
    for name, paths in files.items():
        for path in paths:
            together.setdefault(path, {})[name] = results[name]
    for path, arrays in together.items():
        try:
            *_, array = arrays.values()
            if path.suffix == ".npz":
                _write_all(path, arrays)
            elif path.suffix == _PICTURE:
                _write_picture(path, array)
            else:
                np.save(path, array, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ExecutionError(f"{path}: cannot be written ({error}).") from None


def shown_output(model: MLModel | Pipeline, name: str, value: Any) -> Any:
    """A result as Core ML gives it to a caller: of an image its pixels, any other as it is.

    Raises:
        ExecutionError: an image output is no single image.
    """
    feature = next((f for f in model.outputs if f.name == name), None)
    if feature is None or feature.kind != "image":
        return value
    try:
        return to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{model.path}: output {name!r} has {error}.") from None


def _write_picture(path: Path, pixels: Any) -> None:
    """A PNG of pixels `[H, W, 3]` or `[H, W]`.

    Raises:
        ValueError: they are none of an image of 8 bits.
    """
    if getattr(pixels, "dtype", None) != np.uint8:
        raise ValueError("it is no image of 8 bits; write it as .npy")
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("pictures need Pillow, run: pip install pillow") from None
    Image.fromarray(pixels).save(path)


def _write_all(path: Path, arrays: Mapping[str, Any]) -> None:
    """An `.npz` file; `numpy.savez` cannot name an array `file`."""
    with ZipFile(path, "w") as together:
        for name, array in arrays.items():
            with together.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(  # type: ignore[no-untyped-call]
                    part, np.asarray(array), allow_pickle=False
                )
