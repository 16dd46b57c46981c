"""The machine: what Core ML lists, what its tools print, and what its compilers change."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from pytest_ane.backends.coreml.backend import compile_package
from pytest_ane.backends.coreml.machine import is_replaced
from pytest_ane.mac.first_contact import Found, Kit
from pytest_ane.mlprogram.model import read_model

Ops = Counter[tuple[str, str]]


def _printed_by(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )


def test_neural_engine(kit: Kit, found: Found) -> None:
    """There is a Neural Engine, and Core ML lists it."""
    listed = ", ".join(kit.machine.devices) or "no devices"
    who = "A script answers for Core ML. " if is_replaced() else ""
    found(f"{who}{kit.machine}: Core ML lists {listed}, {kit.machine.ane_cores} ANE cores")
    assert not kit.no_ane, f"This is {kit.no_ane}, which proves nothing of the ANE."


def test_virtual_machine(kit: Kit, found: Found) -> None:
    """A virtual machine lists no Neural Engine."""
    if not kit.machine.virtual:
        pytest.skip("this is no virtual machine")
    found(f"lists {', '.join(kit.machine.devices) or 'nothing'}")
    assert "ANE" not in kit.machine.devices, "Then its plans may prove something of the ANE."


def test_translated_python(kit: Kit, found: Found) -> None:
    """A translated Python's sysctl says 1 for sysctl.proc_translated."""
    printed, runs = _printed_by("sysctl", "-n", "sysctl.proc_translated"), platform.machine()
    said = printed.stdout.strip()
    found(f"Python is {runs}, sysctl.proc_translated is {said or 'not known'}")
    if runs != "arm64" and not kit.machine.translated:
        pytest.skip("this is no Mac with a chip of Apple's")
    assert said == ("0" if runs == "arm64" else "1"), (
        "Then a translated Python is not recognised, and its plans count."
    )


def test_no_window_for_tools(found: Found) -> None:
    """`xcode-select -p` fails without a window where there are no tools."""
    if (printed := _printed_by("xcode-select", "-p")).returncode == 0:
        pytest.skip("there are tools, so no window could open")
    found(f"exit code {printed.returncode}: {printed.stderr.strip()}")
    assert printed.stderr.strip(), "Then a machine without tools needs another question."


def test_compiler_version(kit: Kit, found: Found) -> None:
    """The first dotted number that `xcrun coremlcompiler version` prints is its version."""
    if _printed_by("xcode-select", "-p").returncode:
        pytest.skip("not asked: without tools it opens a window")
    if (printed := _printed_by("xcrun", "coremlcompiler", "version")).returncode:
        pytest.skip(printed.stderr.strip() or "xcrun has none")
    found(f"prints {printed.stdout.strip()!r}")
    assert kit.machine.has_xcode, "Then compiled models of two compilers share one cache entry."


@pytest.fixture(scope="module")
def ops(kit: Kit) -> Callable[[str, str], Ops]:
    """Type and name of every op that a compiler, or else none, leaves of a package."""

    @cache
    def ops_of(name: str, compiler: str) -> Ops:
        if compiler == "xcode" and not kit.machine.has_xcode:
            pytest.skip("there is no such compiler here")
        path = kit.package(name)
        if compiler:
            path = kit.work / f"{name}-{compiler}.mlmodelc"
            shutil.rmtree(path, ignore_errors=True)
            system = replace(kit.machine, compiler="coremltools")
            by = kit.machine if compiler == "xcode" else system
            compile_package(kit.package(name), path, by, kit.device)
        operations = read_model(path, weights=False).main.block.operations
        return Counter((op.op, op.name) for op in operations)

    return ops_of


def _changes(before: Ops, after: Ops) -> tuple[str, set[str]]:
    """What a compiler changed, in words; and the types of compute ops among it."""
    added, removed = (
        Counter(op for op, _ in ops.elements()) for ops in (after - before, before - after)
    )
    parts = [
        f"{verb} {' and '.join(f'{count} {op}' for op, count in sorted(ops.items()))}"
        for verb, ops in (("adds", added), ("folds or renames", removed))
        if ops
    ]
    computing = {op for op in added + removed if not op.startswith("constexpr_")}
    return ", ".join(parts) or "the same ops", computing - {"const", "cast"}


PACKAGES = pytest.mark.parametrize("name", ["conv-iOS18", "foldable", "state"])


@PACKAGES
@pytest.mark.parametrize("by", ["system", "xcode"])
def test_compiler(ops: Callable[[str, str], Ops], name: str, by: str, found: Found) -> None:
    """The system's compiler and Xcode's add, rename and fold constants and casts alone."""
    change, computing = _changes(ops(name, ""), ops(name, by))
    found(change)
    assert not computing, (
        "Then a plan names other ops than the package, and placement has no evidence for those: "
        "its table of what a compiler folds needs a line."
    )


@PACKAGES
def test_both_compilers(ops: Callable[[str, str], Ops], name: str, found: Found) -> None:
    """Both compilers leave the same ops."""
    change, _ = _changes(ops(name, "system"), ops(name, "xcode"))
    found(change)
    assert change == "the same ops", "Then evidence is of one compiler alone."
