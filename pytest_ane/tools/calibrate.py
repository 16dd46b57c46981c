"""`pytest-ane calibrate`: measure how much benchmarks differ when nothing changed.

With `--device` it measures this machine instead, as one of the device profiles that
`pytest-ane bound` reads: bandwidth and peak rate, published or a user's.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.backends.coreml.machine import chip_name
from pytest_ane.cli.options import add_backend, add_project, add_shards
from pytest_ane.cli.output import Output, tell
from pytest_ane.gates.throughput.baseline import Calibration, calibrations, write
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import (
    STORAGE,
    Storage,
    folder_of,
    open_storage,
    read_stored,
)
from pytest_ane.make import Cache
from pytest_ane.manifest import load
from pytest_ane.manifest.base import loads
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import BackendError, ManifestError, UnprovenError
from pytest_ane.mlprogram.strict_json import first_error
from pytest_ane.report.throughput import noise
from pytest_ane.tools.compress import read_table

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
    add = parser.add_argument
    add("--runs", type=int, default=5, metavar="N", help="how many (default: 5)")
    add_shards(parser, "benchmarks of these (default: all)")
    add("-k", metavar="EXPRESSION", help="as of pytest: decode, or L01 and load")
    add_project(parser)
    add_backend(parser, "of the runs")
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
    if options.runs < 2:
        raise UnprovenError(
            f"--runs={options.runs}: noise is what runs differ by; give 2 or more, 5 say."
        )
    storages = _storages(options.benchmark_storage, options.manifest)
    timed = []
    with TemporaryDirectory(prefix="calibrate-") as folder:
        for number in range(1, options.runs + 1):
            begun = time.monotonic()
            speeds = _bench(options, Path(folder, f"{number:04}_run.json"), number)
            took = time.monotonic() - begun
            yield f"run {number} of {options.runs}: {len(speeds)} benchmarks, {took:.0f} s"
            timed.append(speeds)
    machines = calibrations(timed)
    files: list[Path] = []
    for calibration in machines:
        yield from noise(calibration)
        files += _written(calibration, storages)
    yield from (f"stored in {file}" for file in files)
    return {"calibrations": machines, "files": files}


def _bench(options: argparse.Namespace, file: Path, number: int) -> Sequence[Speed]:
    values = {option: getattr(options, name) for name, option in _PASSED_ON.items()}
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
        storage = storages[model.name] = open_storage(uri or STORAGE, baselines)
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


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]

THIS_MACHINE = "this machine"
"""The profile that `pytest-ane calibrate --device` measures."""
_DEFAULT = "M4 Max"
"""The chip of the published ZAYA1 runs."""
_SAVED = "device.toml"
_BYTES = 1 << 28
"""256 MiB an array: beyond any cache."""
_ROWS, _ROUNDS = 1536, 5


class Device(BaseModel):
    """A device profile.

    Attributes:
        bandwidth: GB/s at which weights and states are streamed.
        peak: TFLOP/s; a multiply-accumulate is two operations.
        lanes: elements to a multiple of which the last axis is padded; 1 for no padding.
        held: bytes that a weight takes in memory; None where it is streamed as stored.
        memory: GB/s of the whole chip.
        tops: trillion operations a second as published.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=80)]
    bandwidth: Rate
    peak: Rate
    lanes: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    held: Annotated[int, Field(ge=1, le=8)] | None = None
    memory: Rate | None = None
    tops: Rate | None = None
    sources: tuple[str, ...] = ()


@cache
def published() -> dict[str, Device]:
    """The chips of `devices.toml` by name."""
    tables = loads(files(__package__).joinpath("devices.toml").read_text("utf-8"))
    common = (tables["bandwidth-source"], tables["lanes-source"])
    chips = {}
    for table in tables["device"]:
        sources = (table.pop("peak-source"), *common)
        chips[table["name"]] = Device(**table, lanes=tables["lanes"], sources=sources)
    return chips


def choose_device(name: str | None, root: Path, figures: Mapping[str, float | None]) -> Device:
    """A device by name, or this Mac's chip if its figures are known; `figures` replace its own."""
    device = find_device(name or _chip(), root)
    changes = {key: value for key, value in figures.items() if value is not None}
    if changes:
        changed = f"{device.name} with another {', '.join(changes)}"
        device = device.model_copy(update=changes | {"name": changed})
    return device


def _chip() -> str:
    chip = ""
    if sys.platform == "darwin":
        with suppress(BackendError):
            chip = chip_name().removeprefix("Apple ")
    return chip if chip in published() else _DEFAULT


def find_device(name: str, root: Path) -> Device:
    """A published chip in any case, `this machine` as the cache folder has it, or a TOML file."""
    saved = root / _SAVED
    if name == THIS_MACHINE and not saved.is_file():
        raise ManifestError(
            "--device: this machine has not been measured; run: pytest-ane calibrate --device"
        )
    if name == THIS_MACHINE or name.endswith(".toml"):
        file = saved if name == THIS_MACHINE else Path(name)
        try:
            return Device(**read_table("--device", file))
        except ValidationError as error:
            raise ManifestError(f"--device {file}: {first_error(error)}.") from None
    chips = {chip.casefold(): device for chip, device in published().items()}
    wanted = name.casefold().removeprefix("apple ")
    if wanted not in chips:
        raise ManifestError(
            f"--device {name}: no such chip; there are: {', '.join(published())}, "
            f"'{THIS_MACHINE}', or a .toml file with name, bandwidth (GB/s) and peak (TFLOP/s)."
        )
    return chips[wanted]


def save_device(device: Device, root: Path) -> Path:
    """Save this machine's profile in the cache folder; returns the file."""
    import tomlkit

    path = root / _SAVED
    text = "# Measured by pytest-ane calibrate --device.\n"
    text += tomlkit.dumps(device.model_dump(mode="json", exclude_none=True))
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ManifestError(f"{path}: cannot be written ({error.strerror}).") from None
    return path


def calibrate_device(say: Callable[[str], None]) -> Device:
    """Measure bandwidth and peak rate with numpy, as it is configured to use threads.

    Bandwidth is the best of reading one array (a dot product with itself) and copying one to
    another, as STREAM counts it: bytes read plus bytes written. The rate is that of a product of
    square float32 matrices. The executor holds weights as fp16, so 2 bytes each.
    """
    say("memory bandwidth")
    source = np.ones(_BYTES // 4, np.float32)
    target = np.empty_like(source)
    read = _BYTES / _best(lambda: source @ source)
    copied = 2 * _BYTES / _best(lambda: np.copyto(target, source))
    say("float32 matrix products")
    square = np.ones((_ROWS, _ROWS), np.float32)
    product = np.empty_like(square)
    rate = 2 * _ROWS**3 / _best(lambda: np.matmul(square, square, out=product))
    return Device(
        name=THIS_MACHINE,
        bandwidth=round(max(read, copied) / 1e9, 2),
        peak=round(rate / 1e12, 4),
        held=2,
        sources=(
            f"measured with numpy {np.__version__} on {platform.machine()}: read {read / 1e9:.1f}, "
            f"copy {copied / 1e9:.1f} GB/s, float32 product of {_ROWS} rows",
        ),
    )


def _best(call: Callable[[], Any]) -> float:
    call()
    return min(timeit.repeat(call, repeat=_ROUNDS, number=1))
