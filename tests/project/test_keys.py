"""Keys of what is kept: each thing that a value depends on gives another key, nothing else does.

Every row of a table changes one thing, and names the keys that must differ then: all the others
must stay as they are, or a rename would cost hours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.backends.coreml.backend import CompiledModels
from pytest_ane.backends.coreml.machine import Machine
from pytest_ane.backends.coreml.process import Device
from pytest_ane.make import Artifact
from pytest_ane.make.cache import Cache
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.project.models import OpenBuilder, OpenModel
from pytest_ane.project.project import Project, read_project
from pytest_ane.records.record import question
from pytest_ane.tools._recommend import log_of
from tests.mlprogram.packages import doubling
from tests.plugin.projects import make_llama

Change = Callable[[Path, pytest.MonkeyPatch], None]


class _Asked(BaseException):
    """The cache was asked for an entry: nothing is made here."""


@pytest.fixture(autouse=True)
def _nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(cache: Cache, kind: str, key: str, *arguments: Any, **options: Any) -> Path:
        raise _Asked(f"{kind}/{key}")

    monkeypatch.setattr(Cache, "get_or_make", asked)


def key_of(use: Callable[[], object]) -> str:
    """The entry that a use asks for."""
    with pytest.raises(_Asked) as caught:
        use()
    return str(caught.value)


def edited(old: str, new: str) -> Change:
    """Another manifest."""

    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = folder / "shards.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def other_bytes(name: str) -> Change:
    """One byte of a file more."""

    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (folder / name).open("ab") as file:
            file.write(b"\n")

    return change


def touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


def raised(name: str) -> Change:
    """Another version of our own, in every module that reads it."""

    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in MODULES:
            with suppress(AttributeError):
                monkeypatch.setattr(f"pytest_ane.{module}.{name}", 99)

    return change


MODULES = (
    "make.shard", "probes.recording", "probes.builder", "probes.exact_chain", "project.models",
    "project.project", "project._own_chain", "tools._recommend", "gates.fidelity",
)  # fmt: skip


def upgraded(package: str) -> Change:
    """Another version of a library."""

    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from importlib.metadata import version

        def other(name: str) -> str:
            return "99.0" if name == package else version(name)

        for module in ("make.shard", "project.models", "project._own_chain", "models.families.own"):
            monkeypatch.setattr(f"pytest_ane.{module}.version", other)

    return change


def differing(
    world: Callable[[Path], Mapping[str, str]],
    folder: Path,
    change: Change,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The names of keys that a change gives other values."""
    before = world(folder)
    change(folder, monkeypatch)
    after = world(folder)
    assert before.keys() == after.keys()
    return " ".join(name for name, key in before.items() if after[name] != key)


def opened(folder: Path) -> Project:
    return read_project(folder / "shards.toml", folder.parent / "cache", backend_name="cpu")


def asked(project: Project, gate: str, shard: Any) -> str:
    model = project.manifest.model_of(shard.model)
    return key_digest(question(gate, shard, model, lambda: project.model(model.name).identity))


# A family's model, one of whose shards is a package of the user's own.

FAMILY = """\
[models.mini]
family = "llama"
source = { path = "mini.gguf" }
shards = "L00-L01, head.0-head.1"
max-tokens = 16

[models.mini.compression]
method = "palettize"
nbits = 4

[models.mini.probes]
kinds = ["gaussian", "captured"]
seed = 7

[models.mini.policy.behaviour]
min-greedy = 3
min-positions = 4

[[models.mini.prompts]]
name = "counting"
ids = [5, 17, 40, 3, 22]
greedy = 3
answer = 4
expect = "a"

[models.mini.shard.L01]
artifact = "own.mlpackage"
reference = "float32"
uncompressed = "plain.mlpackage"
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("weights") / "mini.gguf")


@pytest.fixture
def family(tmp_path: Path, weights: Path) -> Path:
    (folder := tmp_path / "family").mkdir()
    (folder / "shards.toml").write_text(FAMILY)
    shutil.copy(weights, folder)
    packages(folder, "own", "plain")
    return folder


def packages(folder: Path, *names: str) -> None:
    """Small ones, all of one program: their metadata differ, and so their digests."""
    for name in names:
        program = doubling()
        program.model.description.metadata.userDefined["made"] = name
        program.save(folder).rename(folder / f"{name}.mlpackage")


def keys_of_family(folder: Path) -> dict[str, str]:
    project = opened(folder)
    made, own = project.shards[0], project.shards[1]
    model = project.model(made.model)
    assert isinstance(model, OpenModel)
    fresh = partial(OpenModel, model.model, project.cache)
    return {
        "artifact": project.entry(made).name,
        "probes": key_of(lambda: model.cases(made)),
        "hidden": key_of(model.capture),
        "answered": key_of(lambda: model._record_hidden(list, model._answered_spec)),
        "golden": key_of(lambda: fresh().golden),
        "tokens": model.tokenizer._file.name,  # type: ignore[attr-defined]
        "budget": key_of(lambda: project.budget(made, Artifact(folder))),
        "own": key_of(lambda: project.budget(own, project.artifact(own))),
        "asked": asked(project, "fidelity", own),
        "log": log_of(None, model, project.cache, CpuBackend())._context,
    }


RECORDED = "probes hidden answered golden"
EVERY = f"artifact {RECORDED} tokens budget own asked log"
BUT_TOKENS = EVERY.replace("tokens ", "")
OF_FAMILY: dict[str, tuple[Change, str]] = {
    "weights": (other_bytes("mini.gguf"), EVERY),
    "largest T": (edited("max-tokens = 16", "max-tokens = 8"), BUT_TOKENS),
    "context": (edited("max-tokens = 16", "max-tokens = 16\ncontext = 32"), BUT_TOKENS),
    "heads": (edited(", head.0-head.1", ", head.0"), BUT_TOKENS),
    "prompt": (edited("[5, 17", "[6, 17"), f"{RECORDED} budget own asked log"),
    "answer": (edited("answer = 4", "answer = 3"), f"{RECORDED} budget own asked log"),
    "what an answer is held to": (edited('expect = "a"', 'expect = "b"'), ""),
    "seed": (edited("seed = 7", "seed = 8"), "probes budget own asked log"),
    "kinds": (edited(', "captured"]', "]"), "probes budget own asked log"),
    "bits": (edited("nbits = 4", "nbits = 6"), "artifact budget"),
    "kept weights": (edited("nbits = 4", 'nbits = 4\nkeep = ["q*"]'), "artifact budget log"),
    "target": (edited("max-tokens", 'target = "iOS17"\nmax-tokens'), "artifact budget log"),
    "policy": (edited("min-greedy = 3", "min-greedy = 2"), "log"),
    "own package": (other_bytes("own.mlpackage/Manifest.json"), "own"),
    "its uncompressed form": (other_bytes("plain.mlpackage/Manifest.json"), "own asked"),
    "its function": (
        edited('artifact = "own', 'function = "main"\nartifact = "own'),
        "own asked log",
    ),
    "its ports": (
        edited("[models.mini.shard.L01]", '[models.mini.shard.L01]\nports = { x = "h" }'),
        "own asked log",
    ),
    "our build": (raised("BUILD_VERSION"), "artifact budget log"),
    "our recordings": (raised("RECORDING_VERSION"), f"{RECORDED} budget own log"),
    "our probes": (raised("GENERATOR"), "probes budget own asked"),
    "our logits": (raised("LOGITS_VERSION"), "answered golden"),
    "our budget": (raised("BUDGET_VERSION"), "budget own"),
    "our inputs": (raised("SAMPLER"), "budget own"),
    "coremltools": (upgraded("coremltools"), "artifact budget"),
    "torch": (upgraded("torch"), f"artifact {RECORDED} budget own log"),
    "numpy": (upgraded("numpy"), f"artifact {RECORDED} budget own log"),
    "tokenizers": (upgraded("tokenizers"), f"artifact {RECORDED} tokens budget own log"),
    "time": (touched, ""),
    "a comment": (edited("[models.mini]", "# mine\n[models.mini]"), ""),
    "the prompt's place": (edited('name = "counting"\n', 'name = "counting" # 1\n'), ""),
}


@pytest.mark.parametrize("what", OF_FAMILY)
def test_of_a_family(family: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = OF_FAMILY[what]
    assert differing(keys_of_family, family, change, monkeypatch) == expected


# Packages of the user's own, each with another kind of reference.

OWN = """\
[models.m.probes]
seed = 7
[models.m.shard.golden]
artifact = "a.mlpackage"
reference = "golden.npz"
uncompressed = "plain.mlpackage"
[models.m.shard.package]
artifact = "a.mlpackage"
reference = "right.mlpackage"
uncompressed = "plain.mlpackage"
inputs.x = { kind = "constant", files = ["x.npy"] }
inputs.ids = { kind = "ids", count = 9 }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (folder := tmp_path / "own").mkdir()
    (folder / "shards.toml").write_text(OWN)
    packages(folder, "a", "plain", "right")
    (folder / "golden.npz").write_bytes(b"golden")
    np.save(folder / "x.npy", np.ones(2, np.float32))
    return folder


MAC = ("Apple M5", "macOS 26.1", "25B78", "coremlcompiler 3520.4.1")


def keys_of_own(folder: Path) -> dict[str, str]:
    project = opened(folder)
    golden, package = project.shards
    compiled = CompiledModels(project.cache, Machine(*MAC), print, Device())
    return {
        "budget": key_of(lambda: project.budget(golden, project.artifact(golden))),
        "asked": asked(project, "fidelity", golden),
        "package-budget": key_of(lambda: project.budget(package, project.artifact(package))),
        "package-asked": asked(project, "fidelity", package),
        "weights-asked": asked(project, "compression", package),
        "compiled": key_of(lambda: compiled.get(folder / "a.mlpackage")),
    }


def moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has another name, where a manifest gives it one."""
    file = folder / "shards.toml"
    text = file.read_text()
    for name in ("a.mlpackage", "plain.mlpackage", "right.mlpackage", "golden.npz", "x.npy"):
        (folder / name).rename(folder / f"my-{name}")
        text = text.replace(f'"{name}"', f'"my-{name}"')
    file.write_text(text)
    (folder / "a.mlpackage").symlink_to("my-a.mlpackage")


def on(system: tuple[str, ...]) -> Change:
    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{__name__}.MAC", system)

    return change


PACKAGE = "package-budget package-asked"
OF_OWN: dict[str, tuple[Change, str]] = {
    "artifact": (other_bytes("a.mlpackage/Manifest.json"), "budget package-budget compiled"),
    "golden tensors": (other_bytes("golden.npz"), "budget asked"),
    "reference": (other_bytes("right.mlpackage/Manifest.json"), PACKAGE),
    "uncompressed": (
        other_bytes("plain.mlpackage/Manifest.json"), f"budget asked {PACKAGE} weights-asked",
    ),
    "another file in it": (
        lambda folder, _: (folder / "plain.mlpackage/b").touch(),
        f"budget asked {PACKAGE} weights-asked",
    ),
    "what compression was asked": (
        edited('"right.mlpackage"', '"right.mlpackage"\ncompression.method = "palettize"'),
        "weights-asked",
    ),
    "inputs": (edited("count = 9", "count = 8"), PACKAGE),
    "an input's file": (other_bytes("x.npy"), PACKAGE),
    "function": (edited('"right.mlpackage"', '"right.mlpackage"\nfunction = "main"'),
                 f"{PACKAGE} weights-asked"),
    "largest T": (edited("[models.m.probes]", "[models.m]\nmax-tokens = 8\n[models.m.probes]"),
                  f"budget asked {PACKAGE}"),
    "seed": (edited("seed = 7", "seed = 8"), f"budget {PACKAGE}"),
    "our inputs": (raised("SAMPLER"), f"budget {PACKAGE}"),
    "system": (on((*MAC[:2], "25C1", MAC[3])), "compiled"),
    "compiler": (on((*MAC[:3], "coremlcompiler 9")), "compiled"),
    "chip": (on(("Apple M4", *MAC[1:])), ""),
    "limits": (edited("[models.m.probes]",
                      "[models.m.policy.fidelity]\nmin-cosine = 0.99\n[models.m.probes]"), ""),
    "names": (moved, ""),
    "time": (touched, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_OWN)
def test_of_own_packages(own: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = OF_OWN[what]
    assert differing(keys_of_own, own, change, monkeypatch) == expected


# A builder's shards.

BUILDER = """\
[models.m]
builder = "keyed_builder:build"
depends = ["weights.bin"]
shards = "L00"
max-tokens = 16
probes.seed = 7
[models.m.shard.L00.inputs.x]
kind = "uniform"
"""


@pytest.fixture
def builder(tmp_path: Path) -> Path:
    (folder := tmp_path / "builder").mkdir()
    (folder / "shards.toml").write_text(BUILDER)
    (folder / "keyed_builder.py").write_text("def build(shard): ...\n")
    (folder / "other.py").write_text("")
    (folder / "weights.bin").write_bytes(b"weights")
    return folder


def keys_of_builder(folder: Path) -> dict[str, str]:
    project = opened(folder)
    (shard,) = project.shards
    model = project.model("m")
    assert isinstance(model, OpenBuilder)
    return {
        "artifact": project.entry(shard).name,
        "probes": key_of(lambda: model.cases(shard)),
        "budget": key_of(lambda: project.budget(shard, Artifact(folder))),
    }


OF_BUILDER: dict[str, tuple[Change, str]] = {
    "code": (other_bytes("keyed_builder.py"), "artifact probes budget"),
    "what it reads": (other_bytes("weights.bin"), "artifact probes budget"),
    "inputs": (edited('"uniform"', '"uniform"\nrange = [0, 2]'), "probes budget"),
    "seed": (edited("seed = 7", "seed = 8"), "probes budget"),
    "our inputs": (raised("SAMPLER"), "probes budget"),
    "our probes": (raised("GENERATOR"), "probes budget"),
    "torch": (upgraded("torch"), "artifact probes budget"),
    "another module": (other_bytes("other.py"), ""),
    "time": (touched, ""),
}


@pytest.mark.parametrize("what", OF_BUILDER)
def test_of_a_builder(builder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = OF_BUILDER[what]
    monkeypatch.syspath_prepend(builder)
    assert differing(keys_of_builder, builder, change, monkeypatch) == expected


# A chain of own packages.

CHAIN = """\
[models.own]
tokenizer = "tokenizer.json"
reference = "keyed_reference:logits"
depends = ["weights.bin"]
embedding = { file = "rows.npy", scale = 2.0 }
prompts = [{ name = "a", ids = [1, 2], greedy = 0 }]
[[models.own.chain]]
shard = "first"
takes = { x = "x" }
gives = { y = "x" }
[[models.own.chain]]
shard = "last"
takes = { x = "x" }
appends = { y = "logits" }
[models.own.shard.first]
artifact = "first.mlpackage"
reference = "plain.mlpackage"
[models.own.shard.last]
artifact = "last.mlpackage"
reference = "none"
"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    (folder := tmp_path / "chain").mkdir()
    (folder / "shards.toml").write_text(CHAIN)
    (folder / "keyed_reference.py").write_text("def logits(ids): ...\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "weights.bin"):
        (folder / name).write_text("{}")
    np.save(folder / "rows.npy", np.ones((3, 2), np.float32))
    packages(folder, "first", "last", "plain")
    return folder


def keys_of_chain(folder: Path) -> dict[str, str]:
    project = opened(folder)
    model = project.model("own")
    assert isinstance(model, OpenModel)
    return {
        "recordings": key_digest(model.identity),
        "tokens": model.tokenizer._file.name,  # type: ignore[attr-defined]
    }


OF_CHAIN: dict[str, tuple[Change, str]] = {
    "code of the reference": (other_bytes("keyed_reference.py"), "recordings"),
    "what it reads": (other_bytes("weights.bin"), "recordings"),
    "another function": (edited(":logits", ":others"), "recordings"),
    "embedding": (other_bytes("rows.npy"), "recordings"),
    "its scale": (edited("scale = 2.0", "scale = 3.0"), "recordings"),
    "reference package": (other_bytes("plain.mlpackage/Manifest.json"), "recordings"),
    "a link of the chain": (edited('gives = { y = "x" }', 'adds = { y = "x" }'), "recordings"),
    "tokenizer": (other_bytes("tokenizer.json"), "recordings tokens"),
    "its chat template": (other_bytes("tokenizer_config.json"), "recordings tokens"),
    "tokenizers": (upgraded("tokenizers"), "recordings tokens"),
    "inputs": (edited('"none"', '"none"\ninputs.m = { kind = "ids", count = 3 }'), "recordings"),
    "artifact": (other_bytes("first.mlpackage/Manifest.json"), ""),
    "time": (touched, ""),
}


@pytest.mark.parametrize("what", OF_CHAIN)
def test_of_a_chain(chain: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = OF_CHAIN[what]
    monkeypatch.syspath_prepend(chain)
    assert differing(keys_of_chain, chain, change, monkeypatch) == expected
