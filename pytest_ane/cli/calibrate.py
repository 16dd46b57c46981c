"""`pytest-ane calibrate`: the noise of this machine's benchmarks, or with `--device` its rates."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import UnprovenError

if TYPE_CHECKING:
    from pytest_ane.gates.throughput.noise import Calibration
    from pytest_ane.gates.throughput.speed import Speed
    from pytest_ane.gates.throughput.stored import Storage

_OPTIONS = {
    "manifest": "--ane-manifest",
    "cache": "--ane-cache",
    "backend": "--ane-backend",
    "units": "--ane-compute-units",
    "expression": "-k",
}
"""Passed on to pytest as they are."""


def run(
    runs: int, shards: str, storage: str | None, *, device: bool, **options: str | Path | None
) -> Iterator[str]:
    """Run the benchmarks several times and store how much their medians differ.

    Each run is a process of its own, for so are the runs that are compared later: the state of a
    process and the place of its memory are part of the noise.

    Args:
        runs: how many.
        shards: as of `--ane-shards`.
        storage: as of `--benchmark-storage`; None for where each model's runs are stored.
        device: measure bandwidth and peak rate of this machine instead.
        options: `manifest`, `cache`, `backend`, `units` and `expression`, options of the runs.

    Raises:
        UnprovenError: fewer than two runs, or no benchmark in them.
    """
    if device:
        yield from _device(options["cache"])
        return
    if runs < 2:
        raise UnprovenError(f"--runs={runs}: noise is what runs differ by; give 2 or more, 5 say.")
    from pytest_ane.gates.throughput.noise import calibrations
    from pytest_ane.report.throughput import noise

    storages = _storages(storage, options["manifest"])
    timed = []
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        for number in range(1, runs + 1):
            begun = time.monotonic()
            speeds = _bench(shards, options, Path(folder, f"{number:04}_run.json"), number)
            took = time.monotonic() - begun
            yield f"run {number} of {runs}: {len(speeds)} benchmarks, {took:.0f} s"
            timed.append(speeds)
    machines = calibrations(timed)
    for calibration in machines:
        yield from noise(calibration)
    for file in _written(machines, storages):
        yield f"stored in {file}"


def _bench(
    shards: str, given: Mapping[str, str | Path | None], file: Path, number: int
) -> Sequence[Speed]:
    """One run; its verdicts do not matter."""
    from pytest_ane.gates.throughput.stored import read_stored

    pairs = [(_OPTIONS[name], str(value)) for name, value in given.items() if value is not None]
    options = [word for pair in pairs for word in pair]
    command = [sys.executable, "-m", "pytest", "-m", "bench", f"--ane-shards={shards}", *options]
    command += [f"--benchmark-json={file}", "--ane-unproven=allow", "-q", "-p", "no:cacheprovider"]
    done = _call(command)
    # 0 and 1: all were run, and some may be red.
    if done.returncode in (0, 1) and file.exists() and (speeds := read_stored(file).speeds):
        return tuple(speeds.values())
    raise UnprovenError(
        f"Run {number} timed nothing (exit code {done.returncode}: "
        f"{_last(done.stderr + done.stdout)}); see why with: "
        + shlex.join(["pytest", "-m", "bench", f"--ane-shards={shards}", *options])
    )


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _storages(uri: str | None, manifest: str | Path | None) -> dict[str, Storage]:
    """Where each model's runs are stored, checked before the first run: they may take an hour.

    Raises:
        AneError: the manifest cannot be read, or a folder cannot be written.
    """
    from pytest_ane.gates.throughput.stored import STORAGE, folder_of, open_storage
    from pytest_ane.manifest import load

    storages = {}
    for model in load(Path(manifest or "shards.toml")).models:
        baselines = None if uri else model.baselines
        storage = storages[model.name] = open_storage(uri or STORAGE, baselines)
        try:
            folder_of(storage).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder_of(storage)).close()
        except OSError as error:
            raise UnprovenError(
                f"{baselines or uri or '.benchmarks'} cannot be written ({error.strerror}); name "
                "another folder with --benchmark-storage=DIR."
            ) from None
    return storages


def _written(machines: Sequence[Calibration], storages: Mapping[str, Storage]) -> Iterator[Path]:
    """Write noise where each model's runs are stored."""
    from pytest_ane.gates.throughput.noise import write

    by_path = {storage.path: storage for storage in storages.values()}
    for calibration in machines:
        for path, storage in by_path.items():
            models = {name for name, other in storages.items() if other.path == path}
            noises = (n for n in calibration.noises if n.subject.partition(":")[0] in models)
            part = calibration.model_copy(update={"noises": tuple(noises)})
            if part.noises:
                yield write(storage, part)


def _device(cache: str | Path | None) -> Iterator[str]:
    from pytest_ane.analysis import devices
    from pytest_ane.build import Cache
    from pytest_ane.cli.status import tell

    root = Cache(Path(cache) if cache else None).root
    device = devices.calibrate_device(tell)
    tell("")
    yield f"{device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s"
    yield from device.sources
    yield f"stored in {devices.save_device(device, root)}"


def _last(output: str) -> str:
    """The error that pytest printed, or its last line."""
    lines = [line.strip("= ") for line in output.splitlines() if line.strip("= ")]
    errors = (line for line in lines if line.startswith("ERROR"))
    return next(errors, lines[-1] if lines else "silent")
