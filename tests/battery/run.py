"""What the gates say of a fault: the project's own path, one shard built with the fault in it."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_ane.gates.base import Gate, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.make import Artifact, compress
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.models.chain import Chain
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project, read_project
from pytest_ane.project.stack import Stack
from pytest_ane.report.verdict import reasons
from tests.battery import tiny
from tests.battery.effect import Effects, every_probe
from tests.battery.fault import Fault
from tests.battery.interface import converter

ROOT = Path(__file__).parents[2]
BUILT = ("module", "host", "interface", "package", "reading")
"""Places of faults that give a package of another content."""
MANIFESTS: dict[str, Path] = {
    "smollm2": ROOT / "shards.toml",
    "zaya": Path(__file__).with_name("small.toml"),
    "zaya1": Path(__file__).with_name("small.toml"),
    "gemma4": Path(__file__).with_name("small.toml"),
}
FULL_SIZE: Mapping[str, Path] = {
    "zaya": ROOT / "examples" / "zaya1-8b.toml",
    "gemma4": ROOT / "examples" / "gemma4.toml",
}
"""The published examples: the effect of a fault is not measured there again."""
CACHE = ROOT / "build" / "battery" / "cache"
CHECKPOINTS = ROOT / "build" / "battery" / "checkpoints"
GATED = ("placement", "compression", "fidelity")
RIGHT = "right"


def manifest_of(model: str) -> Path:
    """The manifest of a model by the battery's name of it."""
    return MANIFESTS.get(model) or tiny.manifest_of(model, CHECKPOINTS)


class FaultyModel(OpenModel):
    """A model one shard of which is converted with a fault; references are the right model's."""

    def __init__(self, right: OpenModel, fault: Fault, shard: str) -> None:
        super().__init__(right.model, right.cache)
        self._right, self._fault, self._shard = right, fault, shard

    @cached_property
    def identity(self) -> dict[str, Any]:
        """So that no package is built once for two faults."""
        return self._right.identity | {"fault": self._fault.name}

    @cached_property
    def language_model(self) -> Any:
        """The right one, with the fault in what is converted."""
        return _Faulty(self._right.language_model, self._fault, self._shard)

    def probes(self, shard: Shard) -> Any:
        """The right model's recordings; a fault of the host's side is in the layout."""
        probes, layout = self._right.probes(shard)
        return probes, self._laid_out(layout)

    def layout(self, shard: Shard) -> Any:
        """How hidden states enter, with a fault of the host's side."""
        return self._laid_out(self._right.layout(shard))

    def _laid_out(self, layout: Any) -> Any:
        return self._fault.put(layout, _no_modules) if self._fault.place == "host" else layout


class _Faulty:
    """A language model, one of whose shards is converted with a fault."""

    def __init__(self, right: Any, fault: Fault, shard: str) -> None:
        self._right, self._fault, self._shard = right, fault, shard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    def conversion(self, shard: str) -> Any:
        """The right one, with the fault put into its module or its ports."""
        conversion = self._right.conversion(shard)
        if shard == self._shard and self._fault.place == "module":
            self._fault.put(conversion.module, lambda other: self._right.conversion(other).module)
        return conversion


class MisreadModel(OpenModel):
    """A model whose configuration or tensors the family reads wrongly.

    Probes are recorded anew, for the family's word of states, experts and ports goes into them;
    outputs and what prompts give are the reference's, who reads the files by itself.
    """

    def __init__(self, right: OpenModel, fault: Fault) -> None:
        super().__init__(right.model, right.cache)
        self._right = right
        self.__dict__["identity"] = right.identity | {"fault": fault.name}
        self.__dict__["language_model"] = fault.put(right.language_model, _no_modules)

    @cached_property
    def _hidden(self) -> Path:
        return self._right._hidden

    @cached_property
    def golden(self) -> Any:
        """The reference's, who has not the fault."""
        return self._right.golden


class EmbeddedStack(Stack):
    """A stack whose artifacts do exactly what the reference does, after the host's embedding."""

    @cached_property
    def chain(self) -> Chain:
        """The reference itself, behind what the family embeds."""
        return replace(self.reference, embed=self._opened.language_model.embed)


def _no_modules(shard: str) -> Any:
    raise AssertionError(f"nothing of {shard} is needed here")


class FaultyProject(Project):
    """A project in which one shard carries a fault."""

    def __init__(self, right: Project, fault: Fault, shard: Shard) -> None:
        super().__init__(right.manifest, (shard,), right.cache_root, builds=2)
        self._fault = fault
        # One cache for both: its limit of builds counts a build within a build once.
        self.__dict__["cache"] = right.cache
        right_model = right.model(shard.model)
        assert isinstance(right_model, OpenModel)
        if fault.place == "reading":
            self._models[shard.model] = MisreadModel(right_model, fault)
        elif fault.place in BUILT:
            self._models[shard.model] = FaultyModel(right_model, fault, shard.id)

    def build(self, shard: Shard) -> Artifact:
        """The package as the fault has it."""
        if self._fault.place == "scheme":
            shard = self._fault.put(shard, _no_modules)
        spoilt = {"interface": converter, "package": _spoiling}.get(self._fault.place)
        with spoilt(self._fault) if spoilt else nullcontext():
            return super().build(shard)


@contextmanager
def _spoiling(fault: Fault) -> Iterator[None]:
    """Spoil a package's files as soon as it is compressed, as a compressor's fault would."""
    right = compress.compress

    def spoilt(model: Any, compression: Any, package: Path, *more: Any) -> Any:
        notes = right(model, compression, package, *more)
        fault.put(package, _no_modules)
        return notes

    with mock.patch.object(compress, "compress", spoilt):
        yield


@contextmanager
def project_of(fault: Fault, qualified: str, cache: Path = CACHE) -> Iterator[Project]:
    """A project of one shard that carries a fault; what is built for it is removed afterwards."""
    cache.mkdir(parents=True, exist_ok=True)
    model, _, part = qualified.partition(":")
    right = _read_project(model, cache)
    name = f"{_name(model)}:{part}"
    shard = next(s for s in right.shards if s.qualified == name)
    project = FaultyProject(right, fault, shard)
    with project.use():
        try:
            yield project
        finally:
            if fault.name != RIGHT and fault.place in BUILT:
                shutil.rmtree(project.entry(shard), ignore_errors=True)


def behaviour(fault: Fault, name: str, cache: Path = CACHE) -> list[Verdict]:
    """What the behaviour gate says of a model whose artifacts are right and its host not."""
    project = _read_project(name, cache)
    right, gate = project.model(name), GATES["behaviour"]
    assert isinstance(right, OpenModel)
    with project.use():
        opened = MisreadModel(right, fault) if fault.name != RIGHT else right
        stack = EmbeddedStack(opened, (), project.backend)
        return [_judged(gate, stack, gate.policy(right.model.policy), stack.subject)]


def _read_project(model: str, cache: Path) -> Project:
    project = read_project(manifest_of(model), cache, builds=2)
    if cache == CACHE:
        project.model(_name(model)).__dict__["language_model"] = _source(model)
    return project


def verdicts(fault: Fault, qualified: str, cache: Path = CACHE) -> list[Verdict]:
    """What the gates of a shard say of it with the fault; an error fails the gate that meets it."""
    if ":" not in qualified:
        return behaviour(fault, qualified, cache)
    with project_of(fault, qualified, cache) as project:
        (shard,) = project.shards
        tests = [(gate, each) for name in GATED for gate in [GATES[name]]
                 for each in project.subjects(gate, shard) if isinstance(each, Shard)]  # fmt: skip
        return [
            _judged(gate, project.open_shard(each), gate.policy(each.policy), each)
            for gate, each in tests
        ]


def _judged(gate: Gate[Any], context: Any, policy: Any, subject: Subject) -> Verdict:
    try:
        return gate.judge(gate.measure(context), policy, subject)
    except AneError as error:
        return Verdict(gate.name, subject.qualified, findings=(Finding("failed", str(error)),))


@dataclass(frozen=True)
class Result:
    """What the gates said of one fault in one shard.

    Attributes:
        effect: as of `Effects.of`; infinite where the files, the interface or the compression
            are not what they should be.
        red: gates that did not pass, each with its first reason.
        seconds: wall time of all.
    """

    fault: str
    shard: str
    effect: float
    red: dict[str, str]
    seconds: float

    @property
    def sentence(self) -> str:
        """The first reason of the gate that should be red, or else of the first that is."""
        gate = fault_of(self.fault).gate
        return self.red.get(gate) or next(iter(self.red.values()), "")


def result(name: str, qualified: str) -> Result:
    """Judge one fault in one shard, and measure its effect."""
    fault, start = fault_of(name), time.perf_counter()
    given = verdicts(fault, qualified)
    red: dict[str, str] = {}
    for verdict in given:
        if verdict.status != "passed":
            red.setdefault(verdict.gate, reasons(verdict)[0])
    model, _, part = qualified.partition(":")
    measured = part and manifest_of(model) != FULL_SIZE.get(model)
    effect = _effects(qualified).of(fault) if measured else math.inf
    return Result(name, qualified, effect, red, time.perf_counter() - start)


@cache
def _effects(qualified: str) -> Effects:
    """A shard of the manifests."""
    name, _, _ = qualified.partition(":")
    shards = read_project(manifest_of(name), CACHE).shards
    shard = next(s for s in shards if s.qualified == qualified)
    model = _source(name)
    given = every_probe(model.layout(shard.id), shard.max_tokens, shard.context)
    return Effects(model, shard.id, given)


@cache
def _source(name: str) -> Any:
    """A model opened once in a process: a GGUF file takes seconds."""
    return read_project(manifest_of(name), CACHE).model(_name(name)).language_model


def _name(model: str) -> str:
    """A model's name in its manifest: the published examples have longer ones."""
    names = [each.name for each in read_project(manifest_of(model), CACHE).manifest.models]
    return next(name for name in names if name.startswith(model))


def fault_of(name: str) -> Fault:
    """A fault by name."""
    from tests.battery import FAULTS

    return FAULTS[name]


def quiet(full: bool = False) -> None:
    """One thread in each process, and no warnings of tracing; the mixtures at `full` size."""
    import torch

    MANIFESTS.update(FULL_SIZE if full else {})

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
