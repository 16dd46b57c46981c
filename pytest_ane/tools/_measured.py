"""Measured speeds to show next to a bound: a stored run of ours, or another runtime's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import read_stored
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.tools._devices import THIS_MACHINE, Device

_LARGEST = 1 << 28
"""Bytes of a file."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


_Text = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_printable)]
_Rate = Annotated[float, Field(gt=0)]


class Measured(BaseModel):
    """A measured speed of decoding; another runtime's is handed in as JSON with these keys.

    Attributes:
        runtime: name and version: `mlx-lm 0.21, 4 bit`.
        device: `M4 Max GPU`; a share of the bound is shown only where it is the bound's device.
        model: as the manifest names it.
        tok_s: tokens a second.
        tokens: T, positions of a call.
        joules_per_token: energy, where somebody measured it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    runtime: _Text
    device: _Text
    model: _Text
    tok_s: _Rate
    tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    joules_per_token: _Rate | None = None


def read_measured(file: Path, model: str, device: Device) -> Measured:
    """A model's speed from a file.

    Args:
        file: a run of pytest-benchmark (`--benchmark-json`, `--benchmark-autosave`), of which the
            decoding is taken, or a JSON object as `Measured` has it.
        model: the model's name.
        device: of the bound; a run of ours on another one is refused.

    Raises:
        ManifestError: the file cannot be read, is neither, or is of another model or device.
        UnprovenError: it is a damaged run of pytest-benchmark.
    """
    try:
        if file.stat().st_size > _LARGEST:
            raise ManifestError(f"--measured {file}: is too large for a measured speed.")
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and "benchmarks" in data:
            return _decoding(file, model, device)
        measured = Measured.model_validate(data)
    except OSError as error:
        raise ManifestError(f"--measured {file}: cannot be read ({error.strerror}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ManifestError(
            f"--measured {file}: {': '.join(filter(None, (key, first['msg'].lower())))}; give an "
            "object with runtime, device, model and tok_s, or a stored run of pytest-benchmark."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"--measured {file}: is no JSON ({error}).") from None
    if measured.model != model:
        raise ManifestError(f"--measured {file}: is of {measured.model}, and the bound of {model}.")
    return measured


def _decoding(file: Path, model: str, device: Device) -> Measured:
    speeds = read_stored(file).speeds.values()
    decoding = [s for s in speeds if s.what == "decode" and s.subject == model and s.tok_s]
    if not decoding:
        raise ManifestError(f"--measured {file}: holds no decoding of {model}.")
    speed, name = decoding[-1], device.name.partition(" with ")[0]
    ran_on = _device(speed)
    if ran_on not in (None, name):
        raise ManifestError(
            f"--measured {file}: was measured on {ran_on}, and the bound is of {device.name}; "
            f"give --device '{ran_on}'."
        )
    return Measured(runtime="measured", device=name, model=model, tok_s=speed.tok_s or 0.0)


def _device(speed: Speed) -> str | None:
    """The profile's name of the device that a run was on."""
    if speed.identity.get("backend") == "cpu":
        return THIS_MACHINE
    return speed.identity.get("chip", "").removeprefix("Apple ") or None
