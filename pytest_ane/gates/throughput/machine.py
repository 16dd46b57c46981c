"""The machine that was timed: what two runs must share, and what may explain a difference.

Numbers are comparable where they come from the same hardware, the same runtime and the same share
of both; that is the identity. Everything else is state: it is kept with a run and shown beside a
difference, and forbids no comparison. A host's name is state, for runners of one kind are one
machine under many names; so is this package's version, for a newer one is what is to be measured.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pytest_ane.backends import Backend

_COREML = ("backend", "native", "chip", "os_build", "compute_units")
"""Of the backend's provenance. Core ML and the ANE's driver are part of the system's build."""
_VERSIONS = ("pytest-ane", "numpy", "coremltools", "compiler", "python", "os")
_SECONDS = 10
_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CHIP = re.compile(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", re.MULTILINE)
_ARM = re.compile(r"^CPU (implementer|part)\s*:\s*(\S+)$", re.MULTILINE)


def identity(backend: Backend) -> dict[str, str]:
    """What two runs must share to be compared.

    With `coreml`: chip, model of the Mac, build of macOS and compute units. With `cpu`: processor,
    cores that this process may use, BLAS threads, system and Python, which runs the executor.
    """
    known = backend.provenance()
    if backend.on_device:
        same = {name: known[name] for name in _COREML if name in known}
        model = _said("sysctl", "-n", "hw.model") if platform.system() == "Darwin" else ""
        return same | ({"model": model} if model else {})
    return {
        "backend": backend.name,
        "chip": _chip(),
        "cores": _count(_cores(), "core"),
        "threads": _count(os.environ.get("OPENBLAS_NUM_THREADS") or "all", "BLAS thread"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"Python {'.'.join(platform.python_version_tuple()[:2])}",
    }


def state(backend: Backend) -> dict[str, str]:
    """What may differ from run to run; what this system does not tell is left out."""
    known = backend.provenance()
    found = {name: known[name] for name in _VERSIONS if name in known}
    found |= {"host": platform.node(), "release": platform.release()}
    found |= _mac() if platform.system() == "Darwin" else _linux()
    return {name: value for name, value in found.items() if value}


def words(same: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`cpu · AMD EPYC 9R45 · 2 cores · ... · load 0.31`: identity, and some of the state."""
    shown = (f"{name} {now[name]}" for name in ("power", "thermal", "load") if name in now)
    return " · ".join([*same.values(), *shown])


def _mac() -> dict[str, str]:
    """Power and thermal pressure as `pmset` tells them, which needs no rights."""
    power = re.search(r"drawing from '([^']+)'", _said("pmset", "-g", "batt"))
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d+)", _said("pmset", "-g"), re.MULTILINE)
    thermal = re.findall(r"(\w+_(?:Limit|Level))\s*=\s*(\d+)", _said("pmset", "-g", "therm"))
    return {
        "power": power[1] if power else "",
        "power_mode": {"0": "automatic", "1": "low", "2": "high"}.get(low[1], "") if low else "",
        "thermal": ", ".join(f"{name} {value}" for name, value in thermal) or "no pressure noted",
        "load": _load(),
    }


def _linux() -> dict[str, str]:
    return {"load": _load(), "governor": _text(_GOVERNOR).strip()}


def _load() -> str:
    """The load average of the last minute: how many other processes want to run."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except (AttributeError, OSError):
        return ""


def _count(number: int | str, noun: str) -> str:
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _chip() -> str:
    if platform.system() == "Darwin":
        return _said("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    text = _text(_CPUINFO)
    if found := _CHIP.search(text):
        return found[1].strip()
    if arm := dict(_ARM.findall(text)):
        return " ".join(f"{name} {value}" for name, value in sorted(arm.items()))
    return platform.processor() or platform.machine()


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _said(*command: str) -> str:
    """What a tool of macOS prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
