"""`pytest-ane calibrate`: measure how much benchmarks differ when nothing changed."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Output, tell
from pytest_ane.gates.throughput.baseline import Calibration, calibrations, write
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import Storage, folder_of, open_storage, read_stored
from pytest_ane.make import Cache
from pytest_ane.manifest import load
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.report.throughput import noise
from pytest_ane.tools._devices import calibrate_device, save_device

EXAMPLE = "pytest-ane calibrate --runs 5 --shards L01 -k decode"
_PASSED_ON = ("manifest", "cache", "backend", "compute_units")
"""Options of the runs, passed on to pytest as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs and their options, or `--device`."""
    add = parser.add_argument
    add("--runs", type=int, default=5, metavar="N", help="how many (default: 5)")
    add_shared(parser, "shards", help="benchmarks of these (default: all)")
    add("-k", metavar="EXPRESSION", help="as of pytest: decode, or L01 and load")
    add_shared(parser, "manifest", "cache")
    add_shared(parser, "backend", help="of the runs")
    add("--compute-units", "--ane-compute-units", metavar="UNITS", help="of the runs")
    add("--benchmark-storage", metavar="URI", help="default: where the models' runs are stored")
    words = "instead: this machine's memory bandwidth and peak rate, for pytest-ane bound"
    add("--device", action="store_true", help=words)


def run(options: argparse.Namespace) -> Output:
    """Run the benchmarks several times and store how much their medians differ.

    Each run is a process of its own, for so are the runs that are compared later: the state of a
    process and the place of its memory are part of the noise.
    """
    if options.device:
        return (yield from _device(options.cache))
    if (runs := options.runs) < 2:
        raise UnprovenError(f"--runs={runs}: noise is what runs differ by; give 2 or more, 5 say.")
    storages = _storages(options.benchmark_storage, options.manifest)
    timed = []
    with TemporaryDirectory(prefix="calibrate-") as folder:
        for number in range(1, runs + 1):
            begun = time.monotonic()
            speeds = _bench(options, Path(folder, f"{number:04}_run.json"), number)
            took = time.monotonic() - begun
            yield f"run {number} of {runs}: {len(speeds)} benchmarks, {took:.0f} s"
            timed.append(speeds)
    machines = calibrations(timed)
    files: list[Path] = []
    for calibration in machines:
        yield from noise(calibration)
        files += _written(calibration, storages)
    yield from (f"stored in {file}" for file in files)
    return {"calibrations": machines, "files": files}


def _bench(options: argparse.Namespace, file: Path, number: int) -> Sequence[Speed]:
    """One run; its verdicts do not matter."""
    values = {f"--ane-{name.replace('_', '-')}": getattr(options, name) for name in _PASSED_ON}
    values["-k"] = options.k
    passed_on = [w for key, value in values.items() if value is not None for w in (key, str(value))]
    bench = ["pytest", "-m", "bench", f"--ane-shards={options.shards}", *passed_on]
    quietly = [f"--benchmark-json={file}", "--ane-unproven=allow", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", *bench, *quietly]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    # 0 and 1: all were run, and some may be red.
    if done.returncode in (0, 1) and file.exists() and (speeds := read_stored(file).speeds):
        return tuple(speeds.values())
    raise UnprovenError(
        f"Run {number} timed nothing (exit code {done.returncode}); see why with: "
        + shlex.join(bench)
    )


def _storages(uri: str | None, manifest: Path | None) -> dict[str, Storage]:
    """Where each model's runs are stored, checked before the first run: they may take an hour."""
    storages = {}
    for model in load(manifest or Path("shards.toml")).models:
        baselines = None if uri else model.baselines
        storage = open_storage(uri) if uri else open_storage(baselines=baselines)
        storages[model.name] = storage
        try:
            folder_of(storage).mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder_of(storage)).close()
        except OSError as error:
            raise UnprovenError(
                f"{baselines or uri or '.benchmarks'} cannot be written ({error.strerror}); name "
                "another folder with --benchmark-storage=DIR."
            ) from None
    return storages


def _written(calibration: Calibration, storages: Mapping[str, Storage]) -> Iterator[Path]:
    for path, storage in {each.path: each for each in storages.values()}.items():
        models = {name for name, other in storages.items() if other.path == path}
        noises = tuple(n for n in calibration.noises if n.subject.partition(":")[0] in models)
        if noises:
            yield write(storage, calibration.model_copy(update={"noises": noises}))


def _device(cache: Path | None) -> Output:
    root = Cache(cache).root
    device = calibrate_device(tell)
    tell("")
    yield f"{device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s"
    yield from device.sources
    yield f"stored in {(file := save_device(device, root))}"
    return {"device": device, "file": file}
