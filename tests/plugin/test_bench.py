"""`-m bench`: what is timed, and what of it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Project

FAST = ("--benchmark-min-rounds=2", "--benchmark-max-time=0.01")


def bench(project: Project, *options: str, shards: str = "all") -> pytest.RunResult:
    return project.run(f"--ane-shards={shards}", "-m", "bench", *FAST, *options)


def stored(project: Project) -> list[dict[str, Any]]:
    (*_, file) = project.path.glob(".benchmarks/*/*.json")
    found: list[dict[str, Any]] = json.loads(file.read_text())["benchmarks"]
    return found


def test_all(project: Project) -> None:
    bench(project.llama(), "--benchmark-autosave")
    result = bench(project.llama(), "--benchmark-autosave","--benchmark-compare", "--benchmark-compare-fail=median:900%")
    print(result.stdout.str())
    print(result.stderr.str())
    print(json.dumps(stored(project)[-1], indent=1))
    result.assert_outcomes(passed=13, deselected=13)
