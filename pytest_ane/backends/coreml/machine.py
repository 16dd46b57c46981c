"""What a measurement on a device depends on: chip, system and compiler, as macOS' own tools say.

`platform` is not used: under Rosetta and older SDKs it names another chip or system.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import version
from typing import Any

from pytest_ane.core.errors import BackendError

XCODE = "coremlcompiler"
_SECONDS = 60
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Machine:
    """A Mac.

    Attributes:
        chip: such as `Apple M4 Max`.
        os: such as `macOS 26.1`.
        os_build: such as `25B78`.
        compiler: what makes an `.mlmodelc`: `coremlcompiler 3520.4.1` of Xcode, else the one
            behind `coremltools 9.0`, which is the system's own.
    """

    chip: str
    os: str
    os_build: str
    compiler: str

    @property
    def has_xcode(self) -> bool:
        """Whether Xcode's `coremlcompiler` compiles here, not the system's own compiler."""
        return self.compiler.startswith(XCODE)

    @classmethod
    def detect(cls) -> Machine:
        """This Mac, as its tools describe it.

        Raises:
            BackendError: a tool of macOS is missing or fails.
        """
        # First what only macOS has: other systems have a sysctl too.
        system = _output_of("sw_vers", "-productVersion")
        return cls(
            chip=_output_of("sysctl", "-n", "machdep.cpu.brand_string"),
            os=f"macOS {system}",
            os_build=_output_of("sw_vers", "-buildVersion"),
            compiler=_compiler(),
        )

    def __str__(self) -> str:
        return f"{self.chip}, {self.os} ({self.os_build})"


def _compiler() -> str:
    """Without Xcode there is no `coremlcompiler`; the command line tools alone lack it.

    Where there are no tools at all, `xcrun` opens a window that offers to install them, and
    `xcode-select -p` only says so.
    """
    try:
        _output_of("xcode-select", "-p")
        match = _VERSION.search(_output_of("xcrun", XCODE, "version"))
    except BackendError:
        match = None
    return f"{XCODE} {match[0]}" if match else f"coremltools {version('coremltools')}"


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
        why = " ".join(done.stderr.split()) or "it says nothing"
        raise BackendError(
            f"`{words}` failed ({why[:200]}, exit code {done.returncode}); "
            f"check this Mac's {command[0]}."
        )
    return output


NAME = "coremltools.libcoremlpython"


def has_native() -> bool:
    """Whether the native module is there; coremltools itself, slow to import, is only looked at."""
    if NAME in sys.modules:
        return sys.modules[NAME] is not None
    package = PathFinder.find_spec("coremltools")
    spec = package and PathFinder.find_spec(NAME, package.submodule_search_locations)
    return bool(spec)


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
    """coremltools, imported without its remarks.

    Raises:
        BackendError: it has no native module here, or one that cannot be loaded.
    """
    check_native()
    from pytest_ane.build.coremltools_quiet import converter_notes, held_interrupt

    with converter_notes(), held_interrupt():
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
