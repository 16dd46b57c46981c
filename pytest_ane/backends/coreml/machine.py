"""What a measurement on a device depends on: chip, system and compiler, as macOS' own tools say.

`platform` is not used: under Rosetta and older SDKs it names another chip or system.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import version
from typing import Any

from pytest_ane.mlprogram.errors import BackendError

XCODE = "coremlcompiler"
_SECONDS = 60
_NO_UTILITY = "unable to find utility"
"""What `xcrun` says where the command line tools lack a program that Xcode has."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Machine:
    """A Mac: `Apple M4 Max`, `macOS 26.1`, `25B78`.

    Attributes:
        compiler: what makes an `.mlmodelc`: `coremlcompiler 3520.4.1` of Xcode, else the one
            behind `coremltools 9.0`, which is the system's own.
        model: `hw.model`, such as `Mac16,5`; empty where sysctl does not tell.
        translated: whether Python runs under Rosetta.
        devices: the kinds that Core ML lists, such as `CPU`, `GPU`, `ANE`; none before macOS 14.
    """

    chip: str
    os: str
    os_build: str
    compiler: str
    model: str = ""
    virtual: bool = False
    translated: bool = False
    devices: tuple[str, ...] = ()
    ane_cores: int = 0

    @property
    def has_xcode(self) -> bool:
        """Whether Xcode's `coremlcompiler` compiles here, not the system's own compiler."""
        return self.compiler.startswith(XCODE)

    @classmethod
    def detect(cls) -> Machine:
        """This Mac, as its tools describe it; `BackendError` where one is missing or fails."""
        # First what only macOS has: other systems have a sysctl too.
        system = _output_of("sw_vers", "-productVersion")
        chip, model = chip_name(), _known("hw.model")
        devices, cores = _listed_devices()
        return cls(
            chip=chip,
            os=f"macOS {system}",
            os_build=system_build(),
            compiler=_compiler(),
            model=model,
            virtual=_is_set("kern.hv_vmm_present")
            or "(Virtual)" in chip
            or model.startswith("VirtualMac"),
            # A program that a translated Python starts is translated as well. Older systems then
            # call the chip `VirtualApple @ 2.50GHz processor`.
            translated=_is_set("sysctl.proc_translated") or chip.startswith("VirtualApple"),
            devices=devices,
            ane_cores=cores,
        )

    def device_facts(self) -> dict[str, str]:
        """What decides whether measurements here prove anything of an ANE, for provenance."""
        facts = {
            "mac": self.model,
            "virtual": "yes" if self.virtual else "no",
            "translated": "yes" if self.translated else "no",
            "devices": ", ".join(self.devices),
            "ane_cores": str(self.ane_cores) if self.devices else "",
        }
        return {key: value for key, value in facts.items() if value}

    def __str__(self) -> str:
        return f"{self.chip}, {self.os} ({self.os_build})"


def without_ane(provenance: Mapping[str, str]) -> str:
    """The kind of machine, by `device_facts`, where it proves nothing of an ANE; else empty."""
    of = provenance.get
    mac = f" ({of('mac')})" if of("mac") else ""
    if of("virtual") == "yes":
        return f"a virtual machine{mac}"
    if of("translated") == "yes":
        return f"a Mac whose Python runs under Rosetta{mac}"
    if (of("virtual"), of("translated")) != ("no", "no") or not of("devices"):
        return "a machine whose devices are not listed (by macOS 13, or by an older pytest-ane)"
    cores = of("ane_cores", "")
    if "ANE" not in of("devices", "").split(", ") or not cores.isdecimal() or not int(cores):
        return f"a Mac for which Core ML lists no Neural Engine{mac}"
    return ""


def chip_name() -> str:
    """Such as `Apple M4 Max`; `BackendError` where this is no Mac."""
    return _output_of("sysctl", "-n", "machdep.cpu.brand_string")


def system_build() -> str:
    """Such as `25B78`; `BackendError` where this is no Mac."""
    return _output_of("sw_vers", "-buildVersion")


def _is_set(oid: str) -> bool:
    return _known(oid) not in ("", "0")


def _known(oid: str) -> str:
    try:
        return _output_of("sysctl", "-n", oid)
    except BackendError:
        return ""


def _listed_devices() -> tuple[tuple[str, ...], int]:
    """Kinds of Core ML's devices and ANE cores; before macOS 14 the native module raises."""
    coremltools()
    from coremltools.models import compute_device as ct

    kinds = {
        ct.MLCPUComputeDevice: "CPU",
        ct.MLGPUComputeDevice: "GPU",
        ct.MLNeuralEngineComputeDevice: "ANE",
    }
    try:
        devices = ct.MLComputeDevice.get_all_compute_devices()
        cores = sum(int(getattr(device, "total_core_count", 0)) for device in devices)
    except RuntimeError:
        return (), 0
    return tuple(dict.fromkeys(kinds.get(type(d), "unknown") for d in devices)), cores


def _compiler() -> str:
    """`xcode-select -p` comes first: `xcrun` without tools opens a window to install them."""
    system = f"coremltools {version('coremltools')}"
    try:
        _output_of("xcode-select", "-p")
    except BackendError:
        return system
    try:
        printed = _output_of("xcrun", XCODE, "version")
    except BackendError as error:
        if _NO_UTILITY in str(error):
            return system
        # Another compiler in its place would be silent: its models are not the same.
        raise BackendError(
            f"{str(error).rstrip('.')}; until it answers, nobody knows which compiler makes models "
            "here. To use the system's own, select the command line tools: "
            "sudo xcode-select -s /Library/Developer/CommandLineTools."
        ) from None
    if (match := _VERSION.search(printed)) is None:
        said = f"prints no version, but {printed[:200]!r}"
        raise BackendError(f"`xcrun {XCODE} version` {said}; install Xcode again.")
    return f"{XCODE} {match[0]}"


def _output_of(*command: str) -> str:
    words = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise BackendError(
            f"The backend coreml asks `{words}` what machine this is, and there is no "
            f"{command[0]} here; it runs on macOS, elsewhere use --ane-backend=cpu."
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"`{words}` failed ({error}); check this Mac's {command[0]}.") from None
    output = done.stdout.strip()
    if done.returncode or not output:
        why = " ".join(done.stderr.split())[:200] or "it says nothing"
        why += f", exit code {done.returncode}"
        raise BackendError(f"`{words}` failed ({why}); check this Mac's {command[0]}.")
    return output


NAME = "coremltools.libcoremlpython"


def has_native() -> bool:
    """Whether the native module is there; coremltools itself, slow to import, is only looked at."""
    if NAME in sys.modules:
        return sys.modules[NAME] is not None
    package = PathFinder.find_spec("coremltools")
    return bool(package and PathFinder.find_spec(NAME, package.submodule_search_locations))


def is_replaced() -> bool:
    """Whether a module of ours answers in its place, from the executor or a recording."""
    return bool(getattr(sys.modules.get(NAME), "PYTEST_ANE", False))


def check_native() -> None:
    """Raise `BackendError` where there is no native module."""
    if not has_native():
        raise BackendError(
            f"The backend coreml needs Core ML, and coremltools has none here ({sys.platform}, "
            f"Python {sys.version_info.major}.{sys.version_info.minor}: no {NAME}); use "
            "--ane-backend=cpu, or a Python of macOS for which coremltools has a wheel."
        )


def coremltools() -> Any:
    """coremltools, imported without its remarks; `BackendError` where its native module is not."""
    check_native()
    from pytest_ane.make.coremltools_quiet import importing

    with importing():
        import coremltools

        # coremltools goes on without it, and fails later with a traceback.
        try:
            import_module(NAME)
        except ImportError as error:
            raise BackendError(
                f"The native module {NAME} of coremltools cannot be loaded ({error}); install "
                "coremltools again for this Python."
            ) from None
    return coremltools
