"""`pytest-ane calibrate`: what noise is on this machine, or with `--device` what it can do."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import UnprovenError

_OPTIONS = {
    "manifest": "--ane-manifest",
    "cache": "--ane-cache",
    "backend": "--ane-backend",
    "units": "--ane-compute-units",
    "expression": "-k",
}
"""Handed on to pytest as they are."""


def run(
    runs: int, shards: str, storage: str | None, *, device: bool, **given: str | Path | None
) -> Iterator[str]:
    """Run the benchmarks several times and keep how much their medians differ.

    Each run is a process of its own, for so are the runs that are compared later: what a process
    warms up, and where its memory lies, is part of the noise.

    Args:
        runs: how many.
        shards: as of `--ane-shards`.
        storage: as of `--benchmark-storage`; absent, where runs are stored.
        device: measure bandwidth and peak rate of this machine instead.
        given: `manifest`, `cache`, `backend`, `units` and `expression`, options of the runs.

    Raises:
        UnprovenError: fewer than two runs, or no benchmark in them.
    """
    if device:
        yield from _device(given["cache"])
        return
    if runs < 2:
        raise UnprovenError(f"--runs={runs}: noise is what runs differ by; give 2 or more, 5 say.")
    from pytest_ane.gates.throughput.noise import calibrations
    from pytest_ane.report.noise import lines

    folders = _folders(storage, given["manifest"])
    found = []
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        for number in range(1, runs + 1):
            begun = time.monotonic()
            speeds = _bench(shards, given, Path(folder, f"{number:04}_run.json"), number)
            took = time.monotonic() - begun
            yield f"run {number} of {runs}: {len(speeds)} benchmarks, {took:.0f} s"
            found.append(speeds)
    made = calibrations(found)
    for calibration in made:
        yield from lines(calibration)
    for file in _written(made, storage, folders):
        yield f"kept in {file}"


def _bench(
    shards: str, given: Mapping[str, str | Path | None], file: Path, number: int
) -> tuple[Any, ...]:
    """One run; verdicts do not matter, for what is compared is compared later."""
    from pytest_ane.gates.throughput.stored import read_stored

    pairs = [(_OPTIONS[name], str(value)) for name, value in given.items() if value is not None]
    options = [word for pair in pairs for word in pair]
    command = [sys.executable, "-m", "pytest", "-m", "bench", f"--ane-shards={shards}", *options]
    command += [f"--benchmark-json={file}", "--ane-unproven=allow", "-q", "-p", "no:cacheprovider"]
    done = _call(command)
    # 0 and 1: all were run, and some may be red.
    if done.returncode in (0, 1) and file.exists() and (speeds := read_stored(file).speeds):
        return speeds
    says = _last(done.stderr + done.stdout)
    raise UnprovenError(
        f"Run {number} timed nothing (exit code {done.returncode}: {says}); see why with: "
        + shlex.join(["pytest", "-m", "bench", f"--ane-shards={shards}", *options])
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


def _device(cache: str | Path | None) -> Iterator[str]:
    from pytest_ane.build import Cache
    from pytest_ane.cli.status import tell

    measuring: Any = import_module("pytest_ane.analysis.device_calibration")
    devices: Any = import_module("pytest_ane.analysis.devices")
    root = Cache(Path(cache) if cache else None).root
    device = measuring.calibrate_device(tell)
    tell("")
    yield f"{device.name}: {device.bandwidth:g} GB/s, {device.peak:g} TFLOP/s"
    yield from device.sources
    yield f"kept in {devices.save_device(device, root)}"


def _last(output: str) -> str:
    """What pytest said at the end."""
    said = [line.strip("= ") for line in output.splitlines() if line.strip("= ")]
    return next((line for line in said if line.startswith("ERROR")), said[-1] if said else "silent")
