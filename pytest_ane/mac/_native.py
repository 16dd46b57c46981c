"""`coremltools.libcoremlpython` of our own, behind coremltools' Python classes.

It has the classes of Core ML's native module, with the signatures that coremltools 9.0 calls, and
answers with the executor: its plans say that everything runs on this machine's CPU.

`stand_in` puts an `Answerer` in front of such a module, this one or Core ML's own, which is given
each question and a way to ask the module behind: `_answers.Replay` or `_answers.Log`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import gettempdir, mkdtemp
from types import ModuleType
from typing import Any, Literal, Protocol
from uuid import uuid4

import numpy as np

from pytest_ane.mac import _plans
from pytest_ane.mac._compiler import is_constant
from pytest_ane.mac._plans import (
    _MLComputePlanProxy,
    _MLCPUComputeDeviceProxy,
    _MLGPUComputeDeviceProxy,
    _MLNeuralEngineComputeDeviceProxy,
)
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.checks import stays_inside
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import AneError, ExecutionError, ProgramError
from pytest_ane.mlprogram.executor import PipelineSession, Session, open_session
from pytest_ane.mlprogram.executor.dtypes import carried
from pytest_ane.mlprogram.executor.interface import mode, to_pixels
from pytest_ane.mlprogram.executor.ops.lists import States
from pytest_ane.mlprogram.model import read_any, read_functions, read_model
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline

__all__ = [
    "_MLCPUComputeDeviceProxy",
    "_MLComputePlanProxy",
    "_MLGPUComputeDeviceProxy",
    "_MLModelAssetProxy",
    "_MLModelProxy",
    "_MLNeuralEngineComputeDeviceProxy",
    "stand_in",
]

PYTEST_ANE = True
INSTALLER = None
"""It lives in the process that activated it."""
_NEWEST_SPECIFICATION = 10
_NUMBERS = count()
"""One for each model that is loaded."""
_FAILED = "Error computing NN outputs: Unable to compute the prediction using ML Program."


@dataclass
class Settings:
    """How models of this process compute, and by which rules of the ANE each of them has."""

    arithmetic: Arithmetic = "typed"
    rules: dict[int, RuleShares] = field(default_factory=dict)

    def __str__(self) -> str:
        simulated = f" as {SIMULATED}" if self.arithmetic == "ane" else ""
        return f"predictions by pytest-ane's CPU executor{simulated} (not Core ML)"

    def on(self, compute_units: str) -> Arithmetic:
        """Of a model that may run on these: as typed where the ANE is not among them."""
        return self.arithmetic if compute_units in ("ALL", "CPU_AND_NE") else "typed"


settings = Settings()


@cache
def announce() -> None:
    """Say on stderr which backend answers; once in a process."""
    print(f"coremltools: {settings}", file=sys.stderr)


class _MLModelProxy:
    """A loaded model, which says what is wrong when it predicts: conversion loads all it makes."""

    def __init__(
        self, path: str, units: str, function: str = "", hints: Any = None, asset: Any = None
    ) -> None:
        del hints
        self._path = Path(getattr(asset, "path", path))
        self._error: AneError | None = None
        self._session: Session | PipelineSession | None = None
        started = time.perf_counter_ns()
        try:
            model = read_any(self._path, function=function or None)
            self._session = open_session(model, arithmetic=settings.on(units))
        except AneError as error:
            self._error = error
        self._number = next(_NUMBERS)
        self._loading = time.perf_counter_ns() - started
        self._predicting: int | None = None
        self._compiled: Path | None = None

    def predict(self, data: dict[str, Any], state: _State | None = None) -> dict[str, Any]:
        """Outputs by name; `AneError` if it cannot be run here, `RuntimeError` as Core ML's own."""
        session = self._ready()
        announce()
        started = time.perf_counter_ns()
        states = None if state is None else state.states
        try:
            outputs = session.predict(declared_inputs(session.model, data), states)
            self._predicting = time.perf_counter_ns() - started
            if (shares := session.rule_shares) is not None:
                settings.rules[self._number] = shares
            return returned_outputs(session.model, outputs)
        except AneError as error:
            raise RuntimeError(f"{_FAILED} {error}") from error

    def batchPredict(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self.predict(data) for data in batch]

    def newState(self) -> _State:
        return _State(self._ready().make_state())

    def get_load_duration_in_nano_seconds(self) -> int:
        return self._loading

    def get_last_predict_duration_in_nano_seconds(self) -> int | None:
        return self._predicting

    def get_compiled_model_path(self) -> str:
        """A folder with `model.mil`, weights and description; deleted with the model."""
        if self._compiled is None:
            self._compiled = temporary_folder(self) / "model.mlmodelc"
            self._compile(self._path, self._compiled)
        return str(self._compiled)

    @staticmethod
    def compileModel(path: str) -> str:
        with new_compiled() as target:
            return str(_MLModelProxy._compile(Path(path), target))

    @staticmethod
    def _compile(path: Path, target: Path) -> Path:
        try:
            return write_compiled(read_model(path), target, read_functions(path))
        except AneError as error:
            raise RuntimeError(f"Error compiling model: {error}") from error

    @staticmethod
    def get_model_structure(path: str) -> Any:
        return _plans.structure(read_model(path).program)

    @staticmethod
    def get_compute_plan(path: str, units: str) -> Any:
        del units
        usage = _plans.Usage("CPU", ("CPU",))
        program = read_model(path).program
        return _plans.compute_plan(program, lambda op: None if is_constant(op.op) else usage)

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        return [_plans.devices()["CPU"]]

    get_available_compute_devices = get_all_compute_devices

    @staticmethod
    def create_model_asset_from_path(path: str) -> Any:
        from coremltools.models.model import MLModelAsset

        return MLModelAsset(_MLModelAssetProxy(Path(path)))

    @staticmethod
    def create_model_asset_from_memory(data: bytes, blobs: Mapping[str, bytes]) -> Any:
        from coremltools.models.model import MLModelAsset

        asset = _MLModelAssetProxy()
        asset.path = _write_package(asset.path / "model.mlpackage", data, blobs)
        return MLModelAsset(asset)

    @staticmethod
    def maximum_supported_specification_version() -> int:
        return _NEWEST_SPECIFICATION

    def _ready(self) -> Session | PipelineSession:
        if self._session is None:
            # Not a RuntimeError: a test that expects Core ML to fail must not pass for this.
            assert self._error is not None
            raise self._error
        return self._session


class _State:
    def __init__(self, states: States) -> None:
        self.states = states

    def read_state(self, name: str) -> Any:
        return self._named(name).read().copy()

    def write_state(self, name: str, value: Any) -> None:
        try:
            self._named(name).write(value)
        except ValueError as error:
            raise RuntimeError(str(error)) from None

    def _named(self, name: str) -> Any:
        if name not in self.states:
            raise RuntimeError(f"no state {name!r}; there are: {', '.join(self.states)}")
        return self.states[name]


class _MLModelAssetProxy:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or temporary_folder(self)


@contextmanager
def new_compiled() -> Iterator[Path]:
    """Where a compiled model is made, gone if that fails; alone, for the caller moves it away."""
    target = Path(gettempdir(), f"pytest-ane-{uuid4().hex}.mlmodelc")
    try:
        yield target
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def temporary_folder(owner: object) -> Path:
    folder = mkdtemp(prefix="pytest-ane-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_package(package: Path, specification: bytes, blobs: Mapping[str, bytes]) -> Path:
    data = package / "Data" / "com.apple.CoreML"
    (data / "weights").mkdir(parents=True)
    (data / "model.mlmodel").write_bytes(specification)
    for name, content in blobs.items():
        if not stays_inside(name):
            raise ProgramError(f"the weights file {name!r} lies outside the model.")
        (data / "weights" / PurePosixPath(name).name).write_bytes(content)
    entries = {"model": {"path": "com.apple.CoreML/model.mlmodel"}}
    manifest = {"itemInfoEntries": entries, "rootModelIdentifier": "model"}
    (package / "Manifest.json").write_text(json.dumps(manifest))
    return package


def declared_inputs(model: MLModel | Pipeline, data: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in the declared types: coremltools hands over fp16 as fp32, and any number as such."""
    given = {f.name: f for f in model.inputs if f.kind != "image" and f.name in data}
    return {**data, **{name: _given(model, f, data[name]) for name, f in given.items()}}


def _given(model: MLModel | Pipeline, feature: Feature, value: Any) -> Any:
    what = type(value).__name__
    try:
        array = np.asarray(value)
        what = "" if array.dtype.kind in "biuf" else f"an array of {array.dtype}"
    except (TypeError, ValueError):
        pass
    if what:
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is {what}, not an array of numbers."
        )
    with np.errstate(all="ignore"):
        array = array.astype(carried(feature.dtype), copy=False)
    fixed = not feature.ranges and not feature.enumerated
    scalar = fixed and array.size == 1 == np.prod(feature.shape)
    return array.reshape(feature.shape) if scalar else array


def returned_outputs(model: MLModel | Pipeline, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as Core ML returns them.

    Multi-arrays have the declared type (fp16 comes as fp32), a scalar has one element; images are
    PIL images; a classifier's label is text or a number, its probabilities are a dictionary.
    """
    features = {f.name: f for f in model.outputs}
    return {
        name: _returned(model, features.get(name), value)
        for name, value in outputs.items()
        if not features or name in features
    }


def _returned(model: MLModel | Pipeline, feature: Feature | None, value: Any) -> Any:
    kind = feature.kind if feature is not None else ""
    if isinstance(value, dict):
        return {_label(key): float(probability) for key, probability in value.items()}
    if kind in ("int64Type", "stringType") or not hasattr(value, "dtype"):
        return _label(value)
    value = np.asarray(value)
    if feature is not None and kind == "image":
        return _image(model, feature, value)
    dtype = value.dtype
    if feature is not None and feature.dtype is not DType.STRING:
        dtype = carried(feature.dtype)  # coremltools gives out fp16 as float32.
    return np.array(value.reshape(1) if value.ndim == 0 else value, dtype)


def _label(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _image(model: MLModel | Pipeline, feature: Feature, value: Any) -> Any:
    """A PIL image; coremltools returns colours with an alpha of 255."""
    try:
        from PIL import Image
    except ImportError:
        raise ExecutionError(
            f"{model.path}: output {feature.name!r} is an image; run: pip install pillow"
        ) from None
    try:
        pixels = to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{model.path}: output {feature.name!r} has {error}.") from None
    image = Image.fromarray(pixels)
    return image.convert("RGBA") if mode(feature) == "RGB" else image


_UNASKED = (
    "auto_set_specification_version",
    "create_model_asset_from_memory",
    "create_model_asset_from_path",
    "get_model_structure",
    "maximum_supported_specification_version",
)
"""What a native module answers for itself."""
At = Literal["compile", "load", "plan", "predict", "state", "read", "devices"]


@dataclass(frozen=True)
class Question:
    """What coremltools asks of Core ML.

    The path is the model's, empty for devices; the units are a plan's. The key is the digest of a
    prediction or of a state's value; None where it has none.
    """

    at: At
    path: str = ""
    units: str = ""
    key: str | None = None
    state: TrackedState | None = None


class Answerer(Protocol):
    def answer(self, question: Question, ask: Callable[[], Any]) -> Any: ...

    def key(self, path: str) -> Callable[..., str | None] | None:
        """What gives the digest of a prediction of this model; None where none is needed."""


class TrackedState:
    """A native state and the digest of its history; `played` where `inner` missed a prediction."""

    def __init__(self, inner: Any, path: str, answerer: Answerer) -> None:
        self.inner, self._path, self._answerer = inner, path, answerer
        self.digest, self.played = "", False

    def then(self, event: object) -> None:
        self.digest = key_digest([self.digest, event])

    def read_state(self, name: str) -> Any:
        question = Question("read", self._path, key=key_digest([self.digest, name]), state=self)
        return self._answerer.answer(question, partial(self.inner.read_state, name))

    def write_state(self, name: str, value: Any) -> None:
        self.inner.write_state(name, value)
        self.then(array_digests({name: np.asarray(value)}))


def array_digests(arrays: Arrays) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [
        (name, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in sorted(arrays.items())
    ]


def stand_in(native: ModuleType, answerer: Answerer, installer: tuple[str, ...] | None) -> Any:
    """A module that answers as the answerer says; `installer` installs it in a child, if at all."""
    module = ModuleType(native.__name__, native.__doc__)
    vars(module).update({k: v for k, v in vars(native).items() if not k.startswith("__")})
    vars(module).update(_MLModelProxy=_proxy(native._MLModelProxy, answerer), INSTALLER=installer)
    return module


def _proxy(native: Any, answerer: Answerer) -> type:
    class Proxy:
        def __init__(
            self, path: str, units: str, function: str = "", hints: Any = None, asset: Any = None
        ) -> None:
            self._at, self._loaded_as = str(getattr(asset, "path", path)), (function, units)
            self._key = answerer.key(self._at)
            load = partial(native, path, units, function, hints, asset)
            self._inner = answerer.answer(Question("load", self._at), load)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def predict(self, data: dict[str, Any], state: TrackedState | None = None) -> Any:
            digest, inner = (None, None) if state is None else (state.digest, state.inner)
            key = self._key(*self._loaded_as, data, digest) if self._key else None
            ask = partial(self._inner.predict, data, inner)
            outputs = answerer.answer(Question("predict", self._at, key=key, state=state), ask)
            if state is not None:
                state.then(key)
            return outputs

        def batchPredict(self, batch: Sequence[dict[str, Any]]) -> list[Any]:
            return [self.predict(data) for data in batch]

        def newState(self) -> TrackedState:
            inner = answerer.answer(Question("state", self._at), self._inner.newState)
            return TrackedState(inner, self._at, answerer)

        @staticmethod
        def compileModel(path: str) -> str:
            ask = partial(native.compileModel, path)
            return str(answerer.answer(Question("compile", path), ask))

        @staticmethod
        def get_compute_plan(path: str, units: str) -> Any:
            ask = partial(native.get_compute_plan, path, units)
            return answerer.answer(Question("plan", path, units), ask)

        @staticmethod
        def get_all_compute_devices() -> Any:
            return answerer.answer(Question("devices"), native.get_all_compute_devices)

        get_available_compute_devices = get_all_compute_devices

    for name in filter(partial(hasattr, native), _UNASKED):
        setattr(Proxy, name, staticmethod(getattr(native, name)))
    return Proxy
