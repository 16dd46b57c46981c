"""Models that are built once, and commands with `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.cli import main
from tests.tools.stacks import Stacks

AsJson = Callable[..., Any]


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory, cache_path: Path) -> Stacks:
    from pytest_ane.make.coremltools_quiet import import_coremltools

    import_coremltools()
    return Stacks(tmp_path_factory.mktemp("stacks"), cache_path / "stacks")


@pytest.fixture
def as_json(capsys: pytest.CaptureFixture[str]) -> AsJson:
    """`as_json("cache", "list")`: what the command prints with `--json`, read strictly."""

    def call(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "--json"]) == code
        out = capsys.readouterr().out
        assert out.isascii()
        return json.loads(out, parse_constant=_refuse)

    return call


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
