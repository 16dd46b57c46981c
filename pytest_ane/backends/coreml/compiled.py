"""Compiled models, kept: one for a package's bytes, a build of macOS and a compiler's version.

An entry is never compiled into again. A stale one gets a successor with the next number, so that
processes which notice together compile once, and Core ML, whose own caches go by path, starts
afresh.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ane.backends.coreml.errors import explain
from pytest_ane.backends.coreml.machine import XCODE, Machine, coremltools
from pytest_ane.backends.coreml.process import Device
from pytest_ane.make.cache import Cache, Entry
from pytest_ane.mlprogram.digests import key_digest, tree_digest
from pytest_ane.mlprogram.errors import ExecutionError

KIND = "compiled"
MODEL = "model.mlmodelc"
RECORD = "compiled.json"


class CompiledModels:
    """Compiled models of one machine in the cache; `say` is told what is compiled again."""

    def __init__(
        self, cache: Cache, machine: Machine, say: Callable[[str], None], device: Device
    ) -> None:
        self._cache = cache
        self._machine = machine
        self._say = say
        self._device = device

    def get(self, package: Path) -> Path:
        """A package's `.mlmodelc`, compiled if it is not there.

        Raises:
            BuildError: the disk is full or failing.
            ExecutionError: it cannot be compiled.
        """
        record = self._record(package)
        return self._entry(package, record, self._latest(record))

    def successor(self, package: Path, stale: Path) -> Path:
        """The successor of a stale one, compiled unless another process has done so already.

        Raises:
            BuildError: the disk is full or failing.
            ExecutionError: it cannot be compiled.
        """
        number = int(stale.parent.name.rpartition("-")[2]) + 1
        record = self._record(package)
        return self._entry(package, record, max(number, self._latest(record)))

    def _entry(self, package: Path, record: dict[str, Any], number: int) -> Path:
        key = f"{key_digest(record)}-{number}"
        make = partial(self._make, package, record, number)
        return self._cache.get_or_make(KIND, key, make, str(package)) / MODEL

    def _make(self, package: Path, record: dict[str, Any], number: int, folder: Path) -> None:
        compile_package(package, folder / MODEL, self._machine, self._device)
        (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
        if number:
            self._say(f"{package}: Core ML refused its compiled model (-14); it is compiled again.")
        for entry, build in list(self._older(record, number)):
            if build != record["os_build"]:
                self._say(
                    f"{package}: its compiled model was of macOS build {build}, and this is "
                    f"{record['os_build']}; it is compiled again."
                )
            with suppress(OSError):
                self._cache.remove(entry)

    def _record(self, package: Path) -> dict[str, Any]:
        """What a compiled model depends on."""
        machine = self._machine
        return {
            "artifact": tree_digest(package),
            "os_build": machine.os_build,
            "compiler": machine.compiler,
        }

    def _latest(self, record: dict[str, Any]) -> int:
        numbers = [
            int(path.name.split("-")[1])
            for path in self._cache.folders(KIND)
            if path.name.startswith(f"{key_digest(record)}-")
        ]
        return max(numbers, default=0)

    def _older(self, record: dict[str, Any], number: int) -> Iterator[tuple[Entry, str]]:
        """Entries of the same bytes that nothing will use again, with their build of macOS."""
        for path in self._cache.folders(KIND):
            with suppress(OSError, ValueError, KeyError, TypeError):
                other = json.loads((path / RECORD).read_text())
                superseded = path.name.split("-")[:2] != [key_digest(record), str(number)]
                same = other["artifact"] == record["artifact"]
                if same and superseded and (other == record or self._other_system(other)):
                    entry = Entry(KIND, path.name, path, 0, path.stat().st_mtime)
                    yield entry, str(other["os_build"])

    def _other_system(self, other: dict[str, Any]) -> bool:
        return bool(other["os_build"] != self._machine.os_build)


def compile_package(package: Path, target: Path, machine: Machine, device: Device) -> None:
    """Compile to the folder `target`, by Xcode's compiler or else by the system's own.

    Raises:
        ExecutionError: the package cannot be compiled.
    """
    if package.suffix != ".mlpackage":
        raise ExecutionError(
            f"{package}: Core ML compiles folders named *.mlpackage; rename it, and its path "
            "in shards.toml."
        )
    if machine.has_xcode:
        _by_xcode(package, target, device.seconds)
    else:
        _by_system(package, target, device)
    if not target.is_dir():
        raise ExecutionError(
            f"{package}: {machine.compiler} left no compiled model; free some disk and run again."
        )


def _by_xcode(package: Path, target: Path, seconds: float) -> None:
    """`xcrun coremlcompiler compile`, which names its result after the package."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = ["xcrun", XCODE, "compile", str(package), folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=seconds,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ExecutionError(
                f"{package}: `xcrun {XCODE} compile` had not ended after {seconds:g} seconds and "
                "was stopped; give it more with --ane-device-timeout, or cut the shard smaller."
            ) from None
        made = Path(folder, f"{package.stem}.mlmodelc")
        if done.returncode or not made.is_dir():
            why = RuntimeError(done.stderr.strip() or done.stdout.strip() or "it says nothing")
            raise _refused(package, f"`xcrun {XCODE} compile` (exit code {done.returncode})", why)
        made.replace(target)


def _by_system(package: Path, target: Path, device: Device) -> None:
    """The compiler of the system, through `compile_model` of coremltools."""
    try:
        device.run(str(package), "compiling", _compile, str(package), str(target))
    except RuntimeError as error:
        raise _refused(package, "Core ML", error) from None


def _compile(package: str, target: str) -> None:
    coremltools()
    from coremltools.models.utils import compile_model

    compile_model(package, target)


def _refused(package: Path, by: str, error: Exception) -> ExecutionError:
    return ExecutionError(
        f"{package}: {by} could not compile it: {explain(error)}; see that "
        f"`pytest-ane explain {package}` reads it, or convert it again."
    )
