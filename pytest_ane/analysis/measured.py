"""What was measured, to be set beside a bound: stored runs of pytest-benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_ane.analysis.devices import THIS_MACHINE, Device
from pytest_ane.core.errors import ManifestError
from pytest_ane.gates.throughput.speed import KEY, Speed

_LARGEST = 1 << 28


def decoded(file: Path, subject: str, device: Device) -> float:
    """Tokens a second at which a run decoded a whole model.

    Args:
        file: as `--benchmark-json` and `--benchmark-autosave` write it.
        subject: the model.
        device: what the bound is of; a run of another one is refused.

    Raises:
        ManifestError: no such run, the file is damaged, or it was another device.
    """
    speeds = [s for s in _speeds(file) if s.what == "decode" and s.subject == subject and s.tok_s]
    if not speeds:
        raise ManifestError(f"--measured {file}: holds no decoding of {subject}.")
    speed = speeds[-1]
    ran_on = _device(speed)
    if ran_on is not None and ran_on != device.name.partition(" with ")[0]:
        raise ManifestError(
            f"--measured {file}: was measured on {ran_on}, and the bound is of {device.name}; "
            f"give --device '{ran_on}'."
        )
    assert speed.tok_s is not None
    return speed.tok_s


def _device(speed: Speed) -> str | None:
    """The name of the device that a run was on, as profiles have it."""
    if speed.identity.get("backend") == "cpu":
        return THIS_MACHINE
    return speed.identity.get("chip", "").removeprefix("Apple ") or None


def _speeds(file: Path) -> Iterator[Speed]:
    try:
        if file.stat().st_size > _LARGEST:
            raise ManifestError(f"--measured {file}: is too large for a benchmark run.")
        for benchmark in json.loads(file.read_bytes())["benchmarks"]:
            extra: dict[str, Any] = benchmark["extra_info"]
            if KEY in extra:
                yield Speed.model_validate(extra[KEY])
    except OSError as error:
        raise ManifestError(f"--measured {file}: cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        raise ManifestError(
            f"--measured {file}: is damaged, or no run that pytest-benchmark stored."
        ) from None
