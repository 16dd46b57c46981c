"""Projects of their own, in which the plugin runs: tiny packages and a tiny Llama, made once."""

from __future__ import annotations

import pkgutil
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

import pytest_ane
from tests.plugin.projects import LLAMA, make_llama, make_packages


@dataclass(frozen=True)
class Workshop:
    """What is costly to make: packages by name, a GGUF file, a cache that all workers fill."""

    packages: dict[str, Path]
    llama: Path
    cache: Path


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    """Import what a run may import before any run.

    pytester drops what a run in this process has imported, and numpy and protobuf cannot be
    imported twice; nor can what numba imports when it compiles for the first time.
    """
    from numba.core.registry import cpu_target

    from pytest_ane.make.coremltools_quiet import import_coremltools

    import_coremltools()
    import_module("vl_convert")
    import_module("fsspec")
    import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
    import_module("transformers.models.auto.tokenization_auto")
    import_module("transformers.modeling_utils")
    cpu_target.target_context.refresh()
    for module in pkgutil.walk_packages(pytest_ane.__path__, "pytest_ane."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


@pytest.fixture(scope="session")
def workshop(_loaded: None, tmp_path_factory: pytest.TempPathFactory, cache_path: Path) -> Workshop:
    folder = tmp_path_factory.mktemp("workshop")
    llama = make_llama(folder / "mini.gguf")
    return Workshop(make_packages(folder), llama, cache_path / "workshop")


class Project:
    """A user's project that pytester made, and runs in it."""

    def __init__(self, pytester: pytest.Pytester, workshop: Workshop) -> None:
        self.pytester = pytester
        self.workshop = workshop
        self.path = pytester.path

    def manifest(self, text: str, name: str = "shards.toml") -> Project:
        (self.path / name).write_text(text)
        return self

    def packages(self, more: str = "", **references: str) -> Project:
        """Own packages: `packages(good="none", nan="good")` names each one's reference."""
        lines = []
        for name, reference in references.items():
            source = self.workshop.packages.get(name, self.path / f"{name}.mlpackage")
            held = self.workshop.packages.get(reference, reference)
            lines += [f"[models.own.shard.{name}]", f'artifact = "{source}"']
            lines += [f'reference = "{held}"', ""]
        return self.manifest("\n".join(lines) + more)

    def llama(self, more: str = "", source: Path | None = None) -> Project:
        return self.manifest(LLAMA.format(source=source or self.workshop.llama) + more)

    def own_gate(self, text: str, name: str = "test_fidelity.py") -> Project:
        """A file among the project's own gates."""
        (self.path / "gates").mkdir(exist_ok=True)
        (self.path / "gates" / name).write_text(f"import pytest\n{text}")
        return self

    def copy(self, package: str) -> Path:
        """A package of the workshop, to be damaged."""
        target = self.path / f"{package}.mlpackage"
        shutil.copytree(self.workshop.packages[package], target)
        return target

    def head(self, text: str) -> Project:
        """Put a text before the manifest's."""
        return self.manifest(text + (self.path / "shards.toml").read_text())

    def replace(self, old: str, new: str) -> Project:
        """Another text in the manifest."""
        text = (self.path / "shards.toml").read_text()
        assert old in text
        return self.manifest(text.replace(old, new))

    def built(self) -> list[str]:
        """What was built, in its order, where conftest.py is `COUNT`."""
        file = self.path / "builds.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[0] for line in lines]

    def gate(self, *options: str, shards: str = "all") -> pytest.RunResult:
        """Run the gates in this process, with the workshop's cache unless another is given.

        Core ML too, unless a time limit is given: a process of its own takes seconds to start.
        """
        return self.run(f"--ane-shards={shards}", "-m", "gate", *options)

    def run(self, *options: str) -> pytest.RunResult:
        cache = [f"--ane-cache={self.workshop.cache}"]
        if any(option.startswith("--ane-cache") for option in options):
            cache = []
        device = ["--ane-device-timeout=0"]
        if any(option.startswith("--ane-device-timeout") for option in options):
            device = []
        result = self.pytester.runpytest_inprocess(*cache, *device, *options)
        assert "Traceback" not in result.stdout.str() + result.stderr.str()
        return result


def refused(result: pytest.RunResult, says: str) -> None:
    """See that a run was a usage error of one sentence."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert fnmatch(line, f"ERROR: {says}"), line


@pytest.fixture
def genuine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replayed Mac pass for a Mac at a desk, whose answers are the device's own."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("pytest_ane.backends.coreml.backend.is_replaced", lambda: False)


@pytest.fixture
def project(
    pytester: pytest.Pytester, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """An empty project on a screen of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return Project(pytester, workshop)
