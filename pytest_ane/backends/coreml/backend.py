"""The backend: compiled models from the cache, loaded on the chosen compute units.

A compiled model is kept: one for a package's bytes, a build of macOS and a compiler's version.
An entry is never compiled into again. A stale one gets a successor with the next number, so that
processes which notice together compile once, and Core ML, whose own caches go by path, starts
afresh.
"""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import pytest_ane
from pytest_ane.backends.coreml.errors import explain, is_stale
from pytest_ane.backends.coreml.machine import (
    XCODE,
    Machine,
    check_native,
    coremltools,
    is_replaced,
    without_ane,
)
from pytest_ane.backends.coreml.process import Device
from pytest_ane.make.cache import Cache, Entry
from pytest_ane.manifest import ComputeUnits
from pytest_ane.manifest.policy import WITH_ANE
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.compiled import is_compiled
from pytest_ane.mlprogram.digests import key_digest, tree_digest
from pytest_ane.mlprogram.errors import ExecutionError, UnprovenError
from pytest_ane.mlprogram.executor.interface import bind_inputs, to_picture
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.records import NUMBERS, DType, Feature, MLModel, Pipeline

KIND = "compiled"
MODEL = "model.mlmodelc"
RECORD = "compiled.json"


class CompiledModels:
    """Compiled models of one machine in the cache; `say` is told what is compiled again."""

    def __init__(
        self, cache: Cache, machine: Machine, say: Callable[[str], None], device: Device
    ) -> None:
        self._cache, self._machine, self._say, self._device = cache, machine, say, device

    def get(self, package: Path, stale: Path | None = None) -> Path:
        """A package's `.mlmodelc`, compiled if need be or if `stale`; else `ExecutionError`."""
        # What a compiled model depends on.
        machine, artifact = self._machine, tree_digest(package)
        record = {
            "artifact": artifact, "os_build": machine.os_build, "compiler": machine.compiler
        }  # fmt: skip
        key = key_digest(record)
        names = (path.name.split("-") for path in self._cache.folders(KIND))
        number = max((int(name[1]) for name in names if name[0] == key), default=0)
        if stale is not None:
            number = max(number, int(stale.parent.name.rpartition("-")[2]) + 1)
        make = partial(self._make, package, record, number)
        return self._cache.get_or_make(KIND, f"{key}-{number}", make, str(package)) / MODEL

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

    def _older(self, record: dict[str, Any], number: int) -> Iterator[tuple[Entry, str]]:
        for path in self._cache.folders(KIND):
            with suppress(OSError, ValueError, KeyError, TypeError):
                other = json.loads((path / RECORD).read_text())
                build = other["os_build"]
                superseded = other == record or build != record["os_build"]
                same = other["artifact"] == record["artifact"]
                new = path.name.split("-")[:2] == [key_digest(record), str(number)]
                if same and superseded and not new:
                    yield Entry(KIND, path.name, path, 0, path.stat().st_mtime), str(build)


def compile_package(package: Path, target: Path, machine: Machine, device: Device) -> None:
    """Compile to the folder `target`, by Xcode's compiler or else by the system's own."""
    if package.suffix != ".mlpackage":
        raise ExecutionError(
            f"{package}: Core ML compiles folders named *.mlpackage; rename it, and its path "
            "in shards.toml."
        )
    try:
        if machine.has_xcode:
            _by_xcode(package, target, device.seconds)
        else:
            device.run(str(package), "compiling", _by_system, str(package), str(target))
    except RuntimeError as error:
        by = f"`xcrun {XCODE} compile`" if machine.has_xcode else "Core ML"
        raise ExecutionError(
            f"{package}: {by} could not compile it: {explain(error)}; see that "
            f"`pytest-ane explain {package}` reads it, or convert it again."
        ) from None
    if not target.is_dir():
        raise ExecutionError(
            f"{package}: {machine.compiler} left no compiled model; free some disk and run again."
        )


def _by_xcode(package: Path, target: Path, seconds: float) -> None:
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
            raise RuntimeError(done.stderr.strip() or done.stdout.strip() or "it says nothing")
        made.replace(target)


def _by_system(package: str, target: str) -> None:
    coremltools()
    from coremltools.models.utils import compile_model

    compile_model(package, target)


T = TypeVar("T")
_READ = (DType.FP16, DType.FP32, DType.FP64, DType.INT32)
"""Outputs of other types are read as if an element had 8 bytes (coremlpython/CoreMLPythonUtils.mm,
`sizeOfArrayElement`)."""


class CoreMLBackend:
    """Runs packages with Core ML.

    Args:
        cache: where compiled models are kept.
        units: where Core ML may run a model; `CPU_ONLY` is for comparison.
        say: takes a sentence for each model that is compiled again.
        machine: this Mac, if known already.
        device: the process of Core ML, if shared.

    Raises:
        BackendError: there is no native Core ML here.
    """

    name = "coreml"

    def __init__(
        self, cache: Cache, units: ComputeUnits = "CPU_AND_NE",
        say: Callable[[str], None] = lambda text: None, machine: Machine | None = None,
        device: Device | None = None,
    ) -> None:  # fmt: skip
        check_native()
        self.device = device or Device()
        self.units = units
        self.say = say
        self._cache = cache
        self._machine = machine
        self._again: set[Path] = set()

    @cached_property
    def machine(self) -> Machine:
        """This Mac; `BackendError` where its tools do not say."""
        return self._machine or Machine.detect()

    @property
    def on_device(self) -> bool:
        """Whether this is a Mac with a Neural Engine, no virtual machine, and not translated."""
        return not without_ane(self.machine.device_facts())

    def require_ane(self) -> None:
        """Raise `UnprovenError` on compute units with the ANE where this machine has none."""
        if self.units in WITH_ANE and (kind := without_ane(self.machine.device_facts())):
            raise UnprovenError(
                f"This is {kind}, which proves nothing of the ANE; to compare on the CPU, run "
                "with --ane-compute-units=CPU_ONLY",
                "device",
            )

    def load(self, artifact: Path, function: str | None = None) -> CoreMLRunner:
        """Load as of `Backend`; `ExecutionError` where Core ML refuses the model."""
        coremltools()
        model = read_any(artifact, function=function)
        return self.with_compiled(
            artifact, lambda compiled: _load(model, compiled, self.units, self.device)
        )

    def with_compiled(self, artifact: Path, use: Callable[[Path], T]) -> T:
        """What `use` makes of an `.mlmodelc`; a stale one is compiled anew. `ExecutionError`."""
        compiled = artifact if is_compiled(artifact) else self._compiled.get(artifact)
        try:
            return use(compiled)
        except RuntimeError as error:
            compiled = self._recompiled(artifact, compiled, error)
        try:
            return use(compiled)
        except RuntimeError as error:
            raise _failed(artifact, error) from None

    def simulated(self) -> None:
        """None: a device computes in its own arithmetic."""
        return

    def provenance(self) -> dict[str, str]:
        """Chip, system, compute units, versions; `native` where Core ML itself did not answer."""
        machine = self.machine
        return {
            "backend": self.name,
            "chip": machine.chip,
            "os": machine.os,
            "os_build": machine.os_build,
            **machine.device_facts(),
            "compute_units": self.units,
            "compiler": machine.compiler,
            "coremltools": version("coremltools"),
            "pytest-ane": pytest_ane.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            **({"native": "replaced by pytest-ane, not Core ML"} if is_replaced() else {}),
        }

    @cached_property
    def _compiled(self) -> CompiledModels:
        return CompiledModels(self._cache, self.machine, self.say, self.device)

    def _recompiled(self, artifact: Path, compiled: Path, error: RuntimeError) -> Path:
        own = compiled == artifact
        if not own and not compiled.is_dir():  # Another process replaced or pruned it.
            return self._compiled.get(artifact)
        if own or not is_stale(error) or artifact in self._again:
            raise _failed(artifact, error) from None
        self._again.add(artifact)
        return self._compiled.get(artifact, compiled)


def _failed(artifact: Path, error: RuntimeError) -> ExecutionError:
    if is_stale(error) and is_compiled(artifact):
        return ExecutionError(
            f"{artifact}: Core ML refuses this compiled model ({explain(error)}); there is no "
            "package here to compile again, so compile its .mlpackage on this Mac."
        )
    again = ", though it was compiled again" if is_stale(error) else ""
    return ExecutionError(f"{artifact}: Core ML failed{again}: {explain(error)}.")


class CoreMLRunner:
    """A loaded `CompiledMLModel`, or one that answers as such; `ExecutionError` where it fails."""

    def __init__(self, model: MLModel | Pipeline, loaded: Any) -> None:
        self.model = model
        self._loaded = loaded
        self._tensors = replace(model, inputs=tuple(f for f in model.inputs if f.kind != "image"))

    def make_state(self) -> Any:
        """Fresh states, all zero; None where the model keeps none."""
        if not self.model.states:
            return None
        with self._explained("made no states"):
            return self._loaded.make_state()

    def read_states(self, state: Any, names: Collection[str] | None = None) -> dict[str, Array]:
        """Copies of states by name: of all, or of some."""
        if state is None:
            return {}
        wanted = [f.name for f in self.model.states] if names is None else names
        with self._explained("could not read a state"):
            return {name: np.array(state.read_state(name)) for name in wanted}

    def write_states(self, state: Any, values: Arrays) -> None:
        """Give states back what `read_states` copied."""
        with self._explained("could not write a state"):
            for name, value in values.items():
                state.write_state(name, value)

    def predict(self, inputs: Arrays, state: Any = None) -> dict[str, FloatArray]:
        """Run once: fp16 inputs are rounded here, and outputs have the program's names."""
        arguments = self._arguments(inputs)
        with self._explained("could not predict"):
            outputs = self._loaded.predict(arguments, state)
        names = self.model.output_names
        if missing := [name for name in names if name not in outputs]:
            raise ExecutionError(
                f"{self.model.path}: Core ML gave no output {missing[0]!r}, but "
                f"{', '.join(outputs) or 'nothing'}; the compiled model is not of this package."
            )
        return {name: _returned(outputs[name]) for name in names}

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[Any]
    ) -> list[dict[str, FloatArray]]:
        """One after the other, each with a state of its own or None."""
        return [self.predict(x, state) for x, state in zip(inputs, states, strict=True)]

    def _arguments(self, inputs: Arrays) -> dict[str, Any]:
        tensors = {f.name: f for f in self._tensors.inputs}
        arrays = {name: value for name, value in inputs.items() if name in tensors}
        arguments: dict[str, Any] = {
            name: array.item() if tensors[name].kind in NUMBERS else np.array(array, order="C")
            for name, array in bind_inputs(self._tensors, arrays, "as-typed").items()
        }
        images = (f for f in self.model.inputs if f.kind == "image" and f.name in inputs)
        return arguments | {f.name: self._picture(f, inputs[f.name]) for f in images}

    def _picture(self, feature: Feature, pixels: Any) -> Any:
        if not isinstance(pixels, np.ndarray):
            return pixels
        try:
            return to_picture(self.model, feature, pixels)
        except ImportError:
            raise ExecutionError("image inputs need Pillow, run: pip install pillow") from None

    @contextmanager
    def _explained(self, failure: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            why = explain(error)
            raise ExecutionError(f"{self.model.path}: Core ML {failure}: {why}.") from None


def _load(model: MLModel | Pipeline, compiled: Path, units: str, device: Device) -> CoreMLRunner:
    for output in model.outputs:
        if output.kind == "tensor" and output.dtype not in _READ:
            raise ExecutionError(
                f"{model.path}: output {output.name!r} is {output.dtype}, which coremltools reads "
                "with wrong strides on a Mac; declare it fp16, or run with --ane-backend=cpu."
            )
    part = getattr(model, "part", "")
    function = getattr(model, "function", "") or None
    loaded = device.load(str(model.path), str(compiled / part), units, function)
    return CoreMLRunner(model, loaded)


def _returned(value: Any) -> Any:
    numeric = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f"
    return np.array(value, np.float32, order="C") if numeric else value
