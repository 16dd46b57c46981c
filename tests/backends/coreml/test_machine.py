"""What macOS' own tools say of a machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_ane.backends.coreml import Machine, check_native, machine
from pytest_ane.backends.coreml.machine import NAME, has_native
from pytest_ane.core.errors import BackendError
from pytest_ane.testing import Mac, Replayer, Script


def test_a_mac_with_xcode(mac: Callable[[Script], None]) -> None:
    mac(Script(Mac("Apple M2", "26.1", "25B78", compiler="3500.32.1")))
    machine = Machine.detect()
    assert machine == Machine("Apple M2", "macOS 26.1", "25B78", "coremlcompiler 3500.32.1")
    assert machine.has_xcode
    assert str(machine) == "Apple M2, macOS 26.1 (25B78)"


def test_without_xcode_the_compiler_is_the_system_s(mac: Callable[[Script], None]) -> None:
    mac(Script(Mac(compiler="")))
    machine = Machine.detect()
    assert machine.compiler == f"coremltools {version('coremltools')}"
    assert not machine.has_xcode


def test_without_any_tools_xcrun_is_not_asked(
    mac: Callable[[Script], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would open a window that offers to install them."""
    mac(Script(Mac(compiler="3500.32.1")))
    (tmp_path / "xcode-select").write_text("#!/bin/sh\necho 'unable to get path' >&2\nexit 2\n")
    (tmp_path / "xcrun").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    for tool in ("xcode-select", "xcrun"):
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert not Machine.detect().has_xcode
    assert not (tmp_path / "asked").exists()


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
def test_a_tool_that_fails_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, why: str
) -> None:
    tool = tmp_path / "sw_vers"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
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


def test_a_replayed_one_counts() -> None:
    with Replayer(Script()):
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
