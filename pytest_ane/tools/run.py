"""`pytest-ane run`: run a model on this machine's CPU, without Core ML."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pytest_ane.cli.options import add_arithmetic, add_function, add_shared
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.arithmetic import SIMULATED, label
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import open_session
from pytest_ane.mlprogram.executor.interface import open_picture, to_pixels
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.records import MLModel, Pipeline
from pytest_ane.report.arithmetic import rules_lines

EXAMPLE = "pytest-ane run encoder.mlpackage --input x=x.npy --out y.npy"
_PICTURE = ".png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package, its inputs, and files for its outputs."""
    add = parser.add_argument
    add("package", type=Path, help="an .mlpackage, an .mlmodelc or a shard of the manifest")
    many: dict[str, Any] = {"action": "append", "default": []}
    words = "an input from a .npy file or a picture; or one FILE.npz of all"
    add("--input", metavar="NAME=FILE", help=words, **many)
    words = "y.npy for the only output, NAME=y.npy for any value, all.npz for all; y.png: an image"
    add("--out", metavar="FILE", help=words, **many)
    words = "round fp16 results as their types say (default), or compute wider throughout"
    kinds = ("as-typed", "float32", "float64")
    add("--precision", choices=kinds, default=kinds[0], help=words)
    add_arithmetic(parser)
    words = "with --arithmetic ane: scale sums of quantized weights after them, which is inferred"
    add("--scale-after", action="store_true", help=words)
    add_function(parser)
    add_shared(parser, "manifest", "cache", "memory", "time")


def found(options: argparse.Namespace, named: Path) -> Generator[str, None, Path]:
    """The package that a path or a shard's id names; of an id a line says where it lies."""
    if named.exists():  # Nearly always; the project takes a second to import.
        return named
    from pytest_ane.project.project import package_of

    path, function = package_of(named, options.manifest, options.cache)
    if path != named:
        options.function = options.function or function
        yield f"{named}: {path}"
    return path


def run(options: argparse.Namespace) -> Output:
    """Run a model once; write the outputs to files, and summarise their values."""
    options.package = yield from found(options, options.package)
    session = open_session(
        read_any(options.package, function=options.function),
        precision=options.precision,
        arithmetic=options.arithmetic,
        scale_after=options.scale_after,
    )
    outputs = session.model.output_names
    files: dict[Path, list[str]] = {}
    for text in options.out:
        path, named = _output_file(text, outputs)
        files.setdefault(path, []).extend(named)
    state = session.make_state() or None
    names = tuple(dict.fromkeys(chain(outputs, *files.values())))
    results = session.predict(read_inputs(options.input), state, outputs=names)
    results = {name: _as_caller(session.model, name, x) for name, x in results.items()}
    for path, wanted in files.items():
        _write(path, {name: results[name] for name in wanted})
    data = {name: _statistics(value) for name, value in results.items()}
    for name, statistics in data.items():
        yield f"{name}: {_shown(statistics)}"
    how = f" ({options.precision})"
    if (rules := session.rule_shares) is not None:
        yield from rules_lines(rules)
        after = ", scales after accumulation (inferred)" if options.scale_after else ""
        how = f" as {SIMULATED}{after}"
    yield f"run by pytest-ane's CPU executor{how}, not by Core ML"
    return {"precision": options.precision, "arithmetic": label(options.arithmetic),
            **({"rules": rules} if rules else {}), "outputs": data}  # fmt: skip


def _statistics(value: Any) -> dict[str, Any]:
    """Type, shape and spread of a tensor; another value as its text."""
    if not isinstance(value, np.ndarray):
        return {"value": str(value)}
    found = {"dtype": str(value.dtype), "shape": list(value.shape), "size": value.size}
    if value.dtype.kind in "fiub":
        finite = value[np.isfinite(value)]
        found["not_finite"] = value.size - finite.size
        if finite.size:
            mean = float(finite.mean(dtype=np.float64))
            found |= {"min": finite.min().item(), "max": finite.max().item(), "mean": mean}
    return found


def _shown(statistics: dict[str, Any]) -> str:
    """`float32 [1, 8] · -1.25 to 3.5 · mean 0.1`, and how many values are not finite."""
    form = "{value}" if "value" in statistics else "{dtype} {shape}"
    if "mean" in statistics:
        form += " · {min:.6g} to {max:.6g} · mean {mean:.6g}"
    if statistics.get("not_finite"):
        form += " · {not_finite} of {size} NaN or infinite"
    return form.format_map(statistics)


def read_inputs(texts: Iterable[str]) -> dict[str, Any]:
    """Inputs by name, from `name=file.npy`, `name=picture.png` or `all.npz`; no pickles."""
    inputs: dict[str, Any] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        if separator and file.endswith(".npy"):
            inputs[name] = _load(Path(file))
        elif separator:
            try:
                inputs[name] = open_picture(Path(file))
            except ValueError as error:
                raise ExecutionError(f"{file}: is no .npy file, and {error}.") from None
        elif text.endswith(".npz"):
            inputs |= _load(Path(text))
        else:
            raise ExecutionError(
                f"--input {text}: give NAME=FILE.npy, or a FILE.npz of all inputs."
            )
    return inputs


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
            return dict(array) if isinstance(array, np.lib.npyio.NpzFile) else array
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise ExecutionError(f"{path}: cannot be read as arrays ({error}).") from None


def _output_file(text: str, outputs: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The file and the values of `y.npy`, `name=y.npy`, or `all.npz` for all outputs."""
    name, separator, file = text.rpartition("=")
    path, names = Path(file), (name,) if separator else outputs
    if path.suffix not in (".npy", ".npz", _PICTURE):
        raise ExecutionError(
            f"--out {text}: give a file ending in .npy or .npz, or {_PICTURE} for an image."
        )
    if path.suffix != ".npz" and len(names) != 1:
        raise ExecutionError(
            f"--out {text}: the model gives {', '.join(outputs)}; "
            "say which with NAME=FILE.npy, or write all into one FILE.npz."
        )
    return path, names


def _as_caller(model: MLModel | Pipeline, name: str, value: Any) -> Any:
    """A result as Core ML gives it to a caller: of an image its pixels, any other as it is."""
    feature = next((f for f in model.outputs if f.name == name), None)
    if feature is None or feature.kind != "image":
        return value
    try:
        return to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{model.path}: output {name!r} has {error}.") from None


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays to an `.npz`, or the only one: an `.npy`, or a PNG of `[H, W, 3]` or `[H, W]`."""
    try:
        if path.suffix == ".npz":
            np.savez(path, **arrays)
            return
        (array,) = arrays.values()
        if path.suffix == ".npy":
            np.save(path, array, allow_pickle=False)
            return
        if getattr(array, "dtype", None) != np.uint8:
            raise ValueError("it is no image of 8 bits; write it as .npy")
        from PIL import Image

        Image.fromarray(array).save(path)
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise ExecutionError(f"{path}: cannot be written ({error}).") from None
