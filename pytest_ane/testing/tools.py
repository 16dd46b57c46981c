"""The tools of a replayed Mac as shell scripts: `sysctl`, `sw_vers`, `xcode-select`, `xcrun`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest_ane
from pytest_ane.testing.script import Machine, Script

_SYSCTL = """case "$*" in
"-n machdep.cpu.brand_string") echo {chip} ;;
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
"-p"|"--print-path") echo {folder} ;;
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


def write_tools(script: Script, folder: Path) -> Path:
    """Write the tools into a folder that goes first on PATH; the script lies beside them."""
    script.save(folder)
    machine = script.machine
    _write(folder / "sysctl", _SYSCTL.format(**_quoted(machine)))
    _write(folder / "sw_vers", _SW_VERS.format(**_quoted(machine)))
    selected = _XCODE if machine.compiler else _TOOLS
    _write(folder / "xcode-select", _XCODE_SELECT.format(folder=selected))
    xcrun = _XCRUN.format(
        **_quoted(machine),
        root=shlex.quote(str(Path(pytest_ane.__file__).parents[1])),
        python=shlex.quote(sys.executable),
        module="pytest_ane.testing.compiler",
        folder=shlex.quote(str(folder)),
    )
    _write(folder / "xcrun", xcrun * bool(machine.compiler) + _NOT_FOUND)
    return folder


def _quoted(machine: Machine) -> dict[str, str]:
    return {
        "chip": shlex.quote(machine.chip),
        "os": shlex.quote(machine.os),
        "build": shlex.quote(machine.build),
        "compiler": shlex.quote(machine.compiler),
    }


def _write(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
