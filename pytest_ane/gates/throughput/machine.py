"""The machine that is timed: its identity, its state, and how long a control workload takes.

Numbers are comparable where they come from the same hardware, the same runtime and the same share
of both; that is the identity. Everything else is state: it is stored with a run and shown next to a
difference, and forbids no comparison. A host's name is state, for runners of one kind are one
machine under many names; so is this package's version, for a newer one is what is to be measured.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from pytest_ane.backends import Backend

_COREML = ("backend", "native", "chip", "os_build", "compute_units")
"""Of the backend's provenance. Core ML and the ANE's driver are part of the system's build."""
_VERSIONS = ("pytest-ane", "numpy", "coremltools", "compiler", "python", "os")
_TIMEOUT = 10
"""Seconds that a tool of macOS may take."""
_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CHIP = re.compile(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", re.MULTILINE)
_ARM = re.compile(r"^CPU (implementer|part)\s*:\s*(\S+)$", re.MULTILINE)
_READINGS, _PRODUCTS, _SHAPE = 5, 1600, (4096, 1536)
"""Of the control workload: readings, products of 64 numbers (about a millisecond), and a float32
matrix of 25 MB, more than most caches hold (about a millisecond of memory)."""


def identity(backend: Backend) -> dict[str, str]:
    """The properties that two runs must share to be compared.

    With `coreml`: chip, model of the Mac, build of macOS and compute units. With `cpu`: processor,
    cores that this process may use, BLAS threads, system and Python, which runs the executor.
    """
    provenance = backend.provenance()
    if backend.name == "coreml":
        same = {name: provenance[name] for name in _COREML if name in provenance}
        return same | ({"model": provenance["mac"]} if "mac" in provenance else {})
    mine = getattr(os, "sched_getaffinity", None)
    return {
        "backend": backend.name,
        "chip": _chip(),
        "cores": _count(len(mine(0)) if mine else os.cpu_count() or 1, "core"),
        "threads": _count(os.environ.get("OPENBLAS_NUM_THREADS") or "all", "BLAS thread"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"Python {'.'.join(platform.python_version_tuple()[:2])}",
    }


def state(backend: Backend) -> dict[str, str]:
    """Properties that may differ from run to run, as far as this system tells them."""
    provenance = backend.provenance()
    values = {name: provenance[name] for name in _VERSIONS if name in provenance}
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    values |= {"host": platform.node(), "release": platform.release(), "load": load}
    values |= _mac() if platform.system() == "Darwin" else {"governor": _text(_GOVERNOR).strip()}
    return {name: value for name, value in values.items() if value}


def control(timer: Callable[[], float]) -> float:
    """Median seconds of the control workload: fixed work of numpy's on the CPU.

    It is timed next to benchmarks and shown with them; no verdict depends on it. Half of it is
    small operations, half a product whose matrix comes from memory, about as in decoding.
    """
    numbers = np.full(64, 0.5, np.float32)
    matrix, vector = np.ones(_SHAPE, np.float32), np.ones(_SHAPE[1], np.float32)
    readings = []
    for _ in range(_READINGS):
        start = timer()
        for _ in range(_PRODUCTS):
            np.multiply(numbers, numbers)
        np.dot(matrix, vector)
        readings.append(timer() - start)
    return median(readings)


def _mac() -> dict[str, str]:
    """Power and thermal pressure as `pmset` prints them, which needs no rights."""
    power = re.search(r"drawing from '([^']+)'", _output("pmset", "-g", "batt"))
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d+)", _output("pmset", "-g"), re.MULTILINE)
    thermal = re.findall(r"(\w+_(?:Limit|Level))\s*=\s*(\d+)", _output("pmset", "-g", "therm"))
    return {
        "power": power[1] if power else "",
        "power_mode": {"0": "automatic", "1": "low", "2": "high"}.get(low[1], "") if low else "",
        "thermal": ", ".join(f"{name} {value}" for name, value in thermal) or "no pressure noted",
    }


def _count(number: int | str, noun: str) -> str:
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def _chip() -> str:
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    text = _text(_CPUINFO)
    if chip := _CHIP.search(text):
        return chip[1].strip()
    arm = " ".join(f"{name} {value}" for name, value in sorted({*_ARM.findall(text)}))
    return arm or platform.processor() or platform.machine()


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    """Standard output of a tool of macOS; empty where it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
