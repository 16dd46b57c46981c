"""The backend: compiled models from the cache, loaded on the compute units that were asked for."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np

import pytest_ane
from pytest_ane.backends.coreml import runner
from pytest_ane.backends.coreml.compiled import CompiledModels
from pytest_ane.backends.coreml.known import explained, is_stale
from pytest_ane.backends.coreml.machine import Machine
from pytest_ane.backends.coreml.native import check_native, coremltools, is_replaced
from pytest_ane.build.cache import Cache
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil import read_model
from pytest_ane.mil.compiled import is_compiled

T = TypeVar("T")

ComputeUnits = Literal["ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY"]
"""Where Core ML may run a model: names of `coremltools.ComputeUnit`."""

COMPUTE_UNITS: tuple[ComputeUnits, ...] = get_args(ComputeUnits)


def _silent(text: str) -> None:
    """Say nothing."""


class CoreMLBackend:
    """Runs packages with Core ML.

    Args:
        cache: where compiled models are kept.
        units: where Core ML may run a model; `CPU_ONLY` is for comparison.
        say: told in a sentence what is compiled again.
        machine: this Mac, where it was asked already.

    Raises:
        BackendError: there is no native Core ML here.
    """

    name = "coreml"
    on_device = True

    def __init__(
        self,
        cache: Cache,
        units: ComputeUnits = "CPU_AND_NE",
        say: Callable[[str], None] = _silent,
        machine: Machine | None = None,
    ) -> None:
        check_native()
        self.units = units
        self.say = say
        self._cache = cache
        self._machine = machine
        self._again: set[Path] = set()

    @cached_property
    def machine(self) -> Machine:
        """This Mac; `BackendError` where its tools do not say."""
        return self._machine or Machine.ask()

    def load(self, artifact: Path) -> runner.CoreMLRunner:
        """Load a package or a compiled model; the default function of several.

        Raises:
            ProgramError: it cannot be read.
            ExecutionError: Core ML refuses it.
        """
        model, ct = read_model(artifact), coremltools()
        return self.with_compiled(
            artifact, lambda compiled: runner.load(model, compiled, self.units, ct)
        )

    def with_compiled(self, artifact: Path, use: Callable[[Path], T]) -> T:
        """What `use` makes of the artifact's `.mlmodelc`, which is compiled if need be.

        Where Core ML says that the compiled model is stale it is compiled once more, which is said,
        and used again. A compiled artifact is used as it is.

        Raises:
            ExecutionError: Core ML fails; with what is known of its error.
        """
        if is_compiled(artifact):
            return self._use(artifact, artifact, use)
        compiled = self._compiled.of(artifact)
        try:
            return use(compiled)
        except RuntimeError as error:
            another = self._another(artifact, compiled, error)
        return self._use(artifact, another, use)

    def provenance(self) -> dict[str, str]:
        """Chip, system, compute units, versions; `native` where Core ML itself did not answer."""
        machine = self.machine
        replaced = {"native": "replaced by pytest-ane, not Core ML"} if is_replaced() else {}
        return {
            "backend": self.name,
            "chip": machine.chip,
            "os": machine.os,
            "os_build": machine.os_build,
            "compute_units": self.units,
            "compiler": machine.compiler,
            "coremltools": version("coremltools"),
            "pytest-ane": pytest_ane.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            **replaced,
        }

    @cached_property
    def _compiled(self) -> CompiledModels:
        return CompiledModels(self._cache, self.machine, self.say)

    def _another(self, artifact: Path, compiled: Path, error: RuntimeError) -> Path:
        """A compiled model in place of one that is gone or stale; else the error is raised."""
        if not compiled.is_dir():  # Another process replaced or pruned it.
            return self._compiled.of(artifact)
        if not is_stale(error) or artifact in self._again:
            raise _failed(artifact, error) from None
        self._again.add(artifact)
        return self._compiled.after(artifact, compiled)

    def _use(self, artifact: Path, compiled: Path, use: Callable[[Path], T]) -> T:
        try:
            return use(compiled)
        except RuntimeError as error:
            raise _failed(artifact, error) from None


def _failed(artifact: Path, error: RuntimeError) -> ExecutionError:
    if is_stale(error) and is_compiled(artifact):
        return ExecutionError(
            f"{artifact}: Core ML refuses this compiled model ({explained(error)}); there is no "
            "package here to compile again, so compile its .mlpackage on this Mac."
        )
    anew = ", though it was compiled anew" if is_stale(error) else ""
    return ExecutionError(f"{artifact}: Core ML failed{anew}: {explained(error)}.")
