"""A Mac that is not there: Core ML's answers from a script; and recording them on one that is."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest_ane
from pytest_ane.mac._script import NAME, Mac, Script
from pytest_ane.mac.predict import MACOS, NATIVE, in_place
from pytest_ane.mlprogram.errors import RecordingError


class Replayer:
    """While it is entered, coremltools and the machine's tools answer as a script says.

    coremltools' own classes run unchanged; `sysctl`, `sw_vers` and `xcrun` come first on PATH.
    Everything is as before afterwards. Counts of failures start at 0 each time it is entered.

    Args:
        script: a script, or a folder with `script.json` and perhaps recorded answers.

    Raises:
        RecordingError: the folder cannot be read.
    """

    def __init__(self, script: Script | Path | str) -> None:
        self.folder = None if isinstance(script, Script) else Path(script)
        self.script = script if isinstance(script, Script) else Script.load(script)
        self._exit = ExitStack()

    def __enter__(self) -> Replayer:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="pytest-ane-")))
            write_tools(self.script, folder)
            stack.enter_context(_replaced(self.script, folder, self.folder))
            path = os.environ.get("PATH", os.defpath)
            stack.callback(os.environ.update, PATH=path)
            os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()


def _replaced(script: Script, folder: Path, recording: Path | None) -> AbstractContextManager[None]:
    # Not on top: a script is a light thing, and the executor takes a second.
    from pytest_ane.mac import _native
    from pytest_ane.mac._answers import Recording, Replay

    replay = Replay(script, folder, Recording(recording) if recording else None)
    installer = (f"{__name__}:{install.__name__}", str(folder), str(recording or ""))
    version = tuple(int(part) for part in script.machine.os.split(".") if part.isdigit())
    return in_place(_native.stand_in(_native, replay, installer), version or MACOS)


_installed = ExitStack()


def install(folder: str, recording: str) -> None:
    recorded = Path(recording) if recording else None
    _installed.enter_context(_replaced(Script.load(folder), Path(folder), recorded))


_SYSCTL = """case "$*" in
"-n machdep.cpu.brand_string") echo {chip} ;;
"-n hw.model") echo {model} ;;
"-n kern.hv_vmm_present") echo {virtual} ;;
{oid}) echo {is_translated} ;;
*) echo "sysctl: unknown oid '$2'" >&2; exit 1 ;;
esac
"""
_SW_VERS = """case "$1" in
-productName|--productName) echo macOS ;;
-productVersion|--productVersion) echo {os} ;;
-buildVersion|--buildVersion) echo {build} ;;
*) echo "ProductName:    macOS"; echo "ProductVersion: "{os}; echo "BuildVersion:   "{build} ;;
esac
"""
_XCODE_SELECT = """case "$*" in
"-p"|"--print-path") echo {selected} ;;
*) echo "xcode-select: error: unknown command option '$1'" >&2; exit 64 ;;
esac
"""
_XCODE, _TOOLS = "/Applications/Xcode.app/Contents/Developer", "/Library/Developer/CommandLineTools"
_NOT_FOUND = """echo "xcrun: error: unable to find utility '$1', not a developer tool" >&2
exit 72
"""
_XCRUN = """case "$1 $2" in
"coremlcompiler version") echo {compiler}; exit ;;
"coremlcompiler compile")
  PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} -m {module} {folder} "$3" "$4" ;;
esac
"""


def write_tools(script: Script, folder: Path) -> None:
    script.save(folder)
    mac = script.machine
    facts = {
        **asdict(mac), "virtual": int(mac.virtual), "is_translated": int(mac.translated),
        "root": Path(pytest_ane.__file__).parents[1], "python": sys.executable,
        "module": "pytest_ane.mac._compiler", "folder": folder,
        "selected": _XCODE if mac.compiler else _TOOLS,
    }  # fmt: skip
    quoted = {name: shlex.quote(str(value)) for name, value in facts.items()}
    # An Intel Mac has no such oid.
    quoted["oid"] = '"no oid"' if mac.chip.startswith("Intel") else '"-n sysctl.proc_translated"'
    tools = {
        "sysctl": _SYSCTL,
        "sw_vers": _SW_VERS,
        "xcode-select": _XCODE_SELECT,
        "xcrun": _XCRUN * bool(mac.compiler) + _NOT_FOUND,
    }
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text.format(**quoted)}")
        (folder / name).chmod(0o755)


class Recorder:
    """While it is entered, every answer of Core ML is kept; on leaving, a recording is complete.

    The folder gets `script.json`, `plans/` and `values/`; it is made if need be. Afterwards
    `skipped` says what could not be kept, a sentence each.

    Raises:
        RecordingError: on entering, there is no native module to record, or the folder holds a
            recording already.
        BackendError: on entering, the tools of macOS do not say which Mac this is.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.skipped: tuple[str, ...] = ()
        self._exit = ExitStack()

    def __enter__(self) -> Recorder:
        from pytest_ane.mac._answers import Log
        from pytest_ane.mac._native import stand_in
        from pytest_ane.make.coremltools_quiet import import_coremltools

        if "PYTEST_XDIST_WORKER" in os.environ:
            raise RecordingError(
                "workers of xdist are not recorded: processes that share one device disturb each "
                "other; leave out -n."
            )
        import_coremltools()
        if (inner := sys.modules.get(NATIVE)) is None:
            raise RecordingError("there is no Core ML on this machine; record on a Mac.")
        if (self.folder / NAME).exists():
            raise RecordingError(
                f"{self.folder}: holds a recording; delete it, or record into another folder."
            )
        self._mac = _this_mac()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = Log(self.folder)
        self._exit.enter_context(in_place(stand_in(inner, self._log, None), None))
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()
        self.skipped = tuple(self._log.skipped)
        failures, compute = tuple(self._log.failures), not self._log.predicted
        Script(self._mac, failures=failures, compute=compute).save(self.folder)


def _this_mac() -> Mac:
    from pytest_ane.backends.coreml import Machine

    found = Machine.detect()
    os, compiler = found.os.removeprefix("macOS "), found.compiler.partition(" ")[2]
    compiler = compiler if found.has_xcode else ""
    known = found.ane_cores, compiler, found.model, found.virtual, found.translated
    return Mac(found.chip, os, found.os_build, *known)
