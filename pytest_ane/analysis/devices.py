"""What bounds a device: published chips, a file of one's own, or this machine as measured."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.core.errors import ManifestError
from pytest_ane.core.files import write_atomically
from pytest_ane.manifest.base import TOMLDecodeError, loads
from pytest_ane.manifest.ids import nearest

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]

THIS_MACHINE = "this machine"
"""The name of what `pytest-ane calibrate --device` measured."""
_SAVED = "device.toml"
_LARGEST = 1 << 20


class Device(BaseModel):
    """A device profile.

    Attributes:
        name: `M4 Max`.
        bandwidth: GB/s at which weights and states are streamed.
        peak: TFLOP/s; a multiply-accumulate is two operations.
        lanes: elements that the last axis is filled up to, computed or not; 1 for none.
        held: bytes that a weight takes in memory; None where it is streamed as stored.
        memory: GB/s of the whole chip.
        tops: trillion operations a second as published.
        sources: where the figures are from.
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

    @property
    def ridge(self) -> float:
        """Operations a byte from which on compute binds."""
        return 1000 * self.peak / self.bandwidth


@cache
def published() -> dict[str, Device]:
    """The chips of `devices.toml` by name."""
    tables = loads(files("pytest_ane.gates.throughput").joinpath("devices.toml").read_text("utf-8"))
    common = (tables["bandwidth-source"], tables["lanes-source"])
    found = {}
    for table in tables["device"]:
        sources = (table.pop("peak-source"), *common)
        found[table["name"]] = Device(**table, lanes=tables["lanes"], sources=sources)
    return found


def find_device(name: str, root: Path) -> Device:
    """A published chip, `this machine`, or the profile in a TOML file.

    Args:
        name: as above; chips in any case.
        root: the cache folder, where this machine's profile is.

    Raises:
        ManifestError: there is none such, or the file is no profile.
    """
    if name.endswith(".toml"):
        return _read(Path(name))
    if name == THIS_MACHINE:
        if not (root / _SAVED).is_file():
            raise ManifestError(
                "--device: this machine has not been measured; run: pytest-ane calibrate --device"
            )
        return _read(root / _SAVED)
    chips = {chip.casefold(): device for chip, device in published().items()}
    wanted = name.casefold().removeprefix("apple ")
    if wanted not in chips:
        raise ManifestError(
            f"--device {name}: no such chip; there are: {', '.join(published())}, "
            f"'{THIS_MACHINE}', or a .toml file with name, bandwidth (GB/s) and peak (TFLOP/s)."
        )
    return chips[wanted]


def save_device(device: Device, root: Path) -> Path:
    """Keep this machine's profile in the cache folder; returns the file."""
    import tomlkit

    profile = {k: v for k, v in device.model_dump(exclude_none=True).items() if v != ()}
    text = f"# Measured by pytest-ane calibrate --device.\n{tomlkit.dumps(profile)}"
    path = root / _SAVED
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ManifestError(f"{path}: cannot be written ({error.strerror}).") from None
    return path


def _read(path: Path) -> Device:
    try:
        if path.stat().st_size > _LARGEST:
            raise ManifestError(f"--device {path}: is too large for a device profile.")
        return Device(**loads(path.read_bytes().decode("utf-8-sig")))
    except OSError as error:
        raise ManifestError(f"--device {path}: cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, TOMLDecodeError) as error:
        raise ManifestError(f"--device {path}: is no TOML file ({error}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        keys = list(Device.model_fields)
        key = ".".join(map(str, first["loc"]))
        hint = "" if key in keys else f"; {nearest(key, keys)}"
        raise ManifestError(f"--device {path}: {key}: {first['msg'].lower()}{hint}.") from None
