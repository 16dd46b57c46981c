"""Device profiles, bandwidth and peak rate: published chips, a user's file, this machine."""

from __future__ import annotations

import platform
import timeit
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.backends.coreml.machine import chip_name
from pytest_ane.manifest.base import loads
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import BackendError, ManifestError
from pytest_ane.mlprogram.strict_json import first_error
from pytest_ane.tools.compress import read_table

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
    with suppress(BackendError):  # No Mac.
        if (chip := chip_name().removeprefix("Apple ")) in published():
            return chip
    return _DEFAULT


def find_device(name: str, root: Path) -> Device:
    """A published chip in any case, `this machine` as the cache folder has it, or a TOML file."""
    file = root / _SAVED if name == THIS_MACHINE else Path(name)
    if name == THIS_MACHINE and not file.is_file():
        raise ManifestError(
            "--device: this machine has not been measured; run: pytest-ane calibrate --device"
        )
    if name == THIS_MACHINE or name.endswith(".toml"):
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

    Bandwidth is the best of reading one array and copying one to another, as STREAM counts it:
    bytes read plus bytes written. The executor holds weights as fp16, so 2 bytes each.
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
