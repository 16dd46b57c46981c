"""What macOS' own tools say of a machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_ane.backends.coreml import Machine, check_native, machine, without_ane
from pytest_ane.backends.coreml.backend import compile_package
from pytest_ane.backends.coreml.machine import NAME, has_native
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac.testing import INTEL, TRANSLATED, VIRTUAL, Mac, Script
from pytest_ane.mlprogram.errors import BackendError, ExecutionError

Become = Callable[[Script], None]
Tool = Callable[[str, str], None]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tool:
    """A shell script in place of one of macOS' tools."""

    def replace_tool(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return replace_tool


def test_a_mac_with_xcode(mac: Become) -> None:
    mac(Script(Mac("Apple M2", "26.1", "25B78", 16, "3500.32.1", "Mac14,2")))
    machine = Machine.detect()
    assert machine == Machine(
        "Apple M2", "macOS 26.1", "25B78", "coremlcompiler 3500.32.1",
        "Mac14,2", False, False, ("CPU", "GPU", "ANE"), 16,
    )  # fmt: skip
    assert without_ane(machine.device_facts()) == ""
    assert machine.has_xcode
    assert str(machine) == "Apple M2, macOS 26.1 (25B78)"


@pytest.mark.parametrize(
    ("replayed", "kind"),
    [
        (VIRTUAL, "a virtual machine (VirtualMac2,1)"),
        (replace(VIRTUAL, virtual=False), "a virtual machine (VirtualMac2,1)"),
        (Mac(virtual=True), "a virtual machine (Mac16,5)"),
        (Mac(translated=True), "a Mac whose Python runs under Rosetta (Mac16,5)"),
        (replace(TRANSLATED, translated=False), "a Mac whose Python runs under Rosetta (Mac16,5)"),
        (INTEL, "a Mac for which Core ML lists no Neural Engine (Macmini8,1)"),
        (Mac(cores=0), "a Mac for which Core ML lists no Neural Engine (Mac16,5)"),
        (Mac(os="13.6"), "a machine whose devices are not listed (by macOS 13, or by an older "
                         "pytest-ane)"),
    ],
)  # fmt: skip
def test_machines_without_an_ane(mac: Become, replayed: Mac, kind: str) -> None:
    mac(Script(replayed))
    assert without_ane(Machine.detect().device_facts()) == kind


@pytest.mark.parametrize(
    "changes",
    [
        {"virtual": "No"},
        {"translated": ""},
        {"devices": "CPU, GPU, ANEs"},
        {"devices": ""},
        {"ane_cores": "0"},
        {"ane_cores": "many"},
        {"ane_cores": ""},
    ],
)
def test_facts_that_are_missing_or_damaged_prove_nothing(
    mac: Become, changes: dict[str, str]
) -> None:
    mac(Script())
    facts = Machine.detect().device_facts()
    assert without_ane(facts) == ""
    assert without_ane({k: v for k, v in (facts | changes).items() if v})


def test_without_xcode_the_compiler_is_the_system_s(mac: Become) -> None:
    mac(Script(Mac(compiler="")))
    machine = Machine.detect()
    assert machine.compiler == f"coremltools {version('coremltools')}"
    assert not machine.has_xcode


def test_without_any_tools_xcrun_is_not_asked(mac: Become, tool: Tool, tmp_path: Path) -> None:
    """It would open a window that offers to install them."""
    mac(Script(Mac(compiler="3500.32.1")))
    tool("xcode-select", "echo 'unable to get path' >&2; exit 2")
    tool("xcrun", f"touch {tmp_path}/asked")
    assert not Machine.detect().has_xcode
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exec sleep 60", "timed out"),
        ("echo 'license not agreed to' >&2; exit 69", "license not agreed to, exit code 69"),
        ("echo none", "prints no version, but 'none'; install Xcode again"),
    ],
)
def test_a_compiler_that_cannot_be_asked_is_not_another_one(
    script: str, sentence: str, mac: Become, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac(Script())
    monkeypatch.setattr(machine, "_SECONDS", 1)
    tool("xcrun", script)
    with pytest.raises(BackendError) as raised:
        Machine.detect()
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_compiler_that_hangs_is_stopped(mac: Become, tool: Tool, tmp_path: Path) -> None:
    mac(Script())
    mine = Machine.detect()
    tool("xcrun", "exec sleep 60")
    with pytest.raises(ExecutionError, match=r"compile` had not ended after 1 seconds"):
        compile_package(tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc", mine, Device(1))


def test_another_system_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"there is no sw_vers here; it runs on macOS.*=cpu\.$"):
        Machine.detect()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'unknown oid' >&2; exit 1", "unknown oid, exit code 1"),
        ("exit 0", "it says nothing, exit code 0"),
    ],
)
def test_a_tool_that_fails_is_one_sentence(tool: Tool, script: str, why: str) -> None:
    tool("sw_vers", script)
    with pytest.raises(BackendError) as raised:
        Machine.detect()
    assert str(raised.value) == (
        f"`sw_vers -productVersion` failed ({why}); check this Mac's sw_vers."
    )


away = pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML")


@away
def test_elsewhere_there_is_none() -> None:
    assert not has_native()
    with pytest.raises(BackendError, match=rf"no {NAME}\); use --ane-backend=cpu, or"):
        check_native()


def test_one_that_cannot_be_loaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as one for another architecture."""
    import coremltools

    (tmp_path / "libcoremlpython.so").write_bytes(b"none")
    monkeypatch.setattr(coremltools, "__path__", [*coremltools.__path__, str(tmp_path)])
    monkeypatch.setattr(machine, "has_native", lambda: True)
    with pytest.raises(BackendError, match=r"cannot be loaded \(.*\); install coremltools again"):
        machine.coremltools()


def test_looking_for_it_imports_nothing(pytester: pytest.Pytester) -> None:
    code = (
        "import sys; from pytest_ane.backends.coreml.machine import has_native; has_native();"
        "print('coremltools' in sys.modules, 'torch' in sys.modules)"
    )
    assert pytester.runpython_c(code).outlines == ["False False"]
