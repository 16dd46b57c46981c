"""`pytest-ane calibrate`: the noise of this machine's benchmarks, or with `--device` its rates."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_backend, add_project, add_shards
from pytest_ane.cli.output import Output
from pytest_ane.cli.terminal import tell
from pytest_ane.core.errors import UnprovenError

HELP = "measure how much benchmarks differ when nothing changed"
EXAMPLE = "pytest-ane calibrate --runs 5 --shards L01 -k decode"
_PASSED_ON = {
    "manifest": "--ane-manifest",
    "cache": "--ane-cache",
    "backend": "--ane-backend",
    "compute_units": "--ane-compute-units",
    "k": "-k",
}
"""Options of the runs, passed on to pytest as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs and their options, or `--device`."""
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="how many (default: 5)")
    add_shards(parser, "benchmarks of these (default: all)")
    parser.add_argument("-k", metavar="EXPRESSION", help="as of pytest: decode, or L01 and load")
    add_project(parser)
    add_backend(parser, "of the runs")
    parser.add_argument(
        "--compute-units", "--ane-compute-units", metavar="UNITS", help="of the runs"
    )
    parser.add_argument(
        "--benchmark-storage", metavar="URI", help="default: where the models' runs are stored"
    )
    parser.add_argument(
        "--device",
        action="store_true",
        help="instead: this machine's memory bandwidth and peak rate, for pytest-ane bound",
    )


def run(options: argparse.Namespace) -> Output:
    """Run the benchmarks several times and store how much their medians differ.

    Each run is a process of its own, for so are the runs that are compared later: the state of a
    process and the place of its memory are part of the noise.

    Raises:
        UnprovenError: fewer than two runs, or no benchmark in them.
    """
    if options.device:
        return (yield from _device(options.cache))
    if options.runs < 2:
        raise UnprovenError(
            f"--runs={options.runs}: noise is what runs differ by; give 2 or more, 5 say."
        )
    from pytest_ane.gates.throughput.noise import calibrations
    from pytest_ane.report.noise import lines

    folders = _folders(options.benchmark_storage, options.manifest)
    timed = []
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        for number in range(1, options.runs + 1):
            begun = time.monotonic()
            speeds = _bench(options, Path(folder, f"{number:04}_run.json"), number)
            took = time.monotonic() - begun
            yield f"run {number} of {options.runs}: {len(speeds)} benchmarks, {took:.0f} s"
            timed.append(speeds)
    machines = calibrations(timed)
    for calibration in machines:
        yield from lines(calibration)
    files = list(_written(machines, options.benchmark_storage, folders))
    yield from (f"kept in {file}" for file in files)
    return {"calibrations": machines, "files": files}


def _bench(options: argparse.Namespace, file: Path, number: int) -> tuple[Any, ...]:
    """One run; its verdicts do not matter."""
    from pytest_ane.gates.throughput.stored import read_stored

    values = ((option, getattr(options, name)) for name, option in _PASSED_ON.items())
    passed_on = [
        word for option, value in values if value is not None for word in (option, str(value))
    ]
    bench = ["pytest", "-m", "bench", f"--ane-shards={options.shards}", *passed_on]
    command = [sys.executable, "-m", *bench]
    command += [f"--benchmark-json={file}", "--ane-unproven=allow", "-q", "-p", "no:cacheprovider"]
    done = _call(command)
    # 0 and 1: all were run, and some may be red.
    if done.returncode in (0, 1) and file.exists() and (speeds := read_stored(file).speeds):
        return speeds
    says = _last(done.stderr + done.stdout)
    raise UnprovenError(
        f"Run {number} timed nothing (exit code {done.returncode}: {says}); see why with: "
        + shlex.join(bench)
    )


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _folders(uri: str | None, manifest: str | Path | None) -> dict[str, Path | None]:
    """Where each model's runs are stored, None for pytest-benchmark's own folder.

    Looked at before the first run, for the runs may take an hour.

    Raises:
        AneError: the manifest cannot be read, or a folder cannot be written.
    """
    from pytest_ane.gates.throughput.storage import STORAGE, beside, folder_of, open_storage
    from pytest_ane.manifest import load

    models = load(Path(manifest or "shards.toml")).models
    folders = {model.name: None if uri else model.baselines for model in models}
    for baselines in dict.fromkeys(folders.values()):
        try:
            folder = folder_of(beside(open_storage(uri or STORAGE), baselines))
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UnprovenError(
                f"{baselines or uri or '.benchmarks'} cannot keep what is measured "
                f"({error.strerror}); name another folder with --benchmark-storage=DIR."
            ) from None
    return folders


def _written(
    made: Sequence[Any], uri: str | None, folders: Mapping[str, Path | None]
) -> Iterator[Path]:
    """Write noise where each model's runs are stored."""
    from pytest_ane.gates.throughput.noise import write
    from pytest_ane.gates.throughput.storage import STORAGE, beside, open_storage

    storage = open_storage(uri or STORAGE)
    for calibration in made:
        for folder in dict.fromkeys(folders.values()):
            noises = tuple(
                one
                for one in calibration.noises
                if folders.get(one.subject.partition(":")[0]) == folder
            )
            if noises:
                part = calibration.model_copy(update={"noises": noises})
                yield write(beside(storage, folder), part)


def _device(cache: Path | None) -> Output:
    from pytest_ane.build import Cache

    measuring: Any = import_module("pytest_ane.analysis.device_calibration")
    devices: Any = import_module("pytest_ane.analysis.devices")
    root = Cache(cache).root
    device = measuring.calibrate_device(tell)
    tell("")
    yield f"{device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s"
    yield from device.sources
    file = devices.save_device(device, root)
    yield f"kept in {file}"
    return {"device": device, "file": file}


def _last(output: str) -> str:
    """What pytest said at the end."""
    said = [line.strip("= ") for line in output.splitlines() if line.strip("= ")]
    return next((line for line in said if line.startswith("ERROR")), said[-1] if said else "silent")
