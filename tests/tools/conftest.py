"""Models that are built once, and what commands print: as lines, or with `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.cli import main
from tests.tools.stacks import Stacks

AsJson = Callable[..., Any]
Says = Callable[..., list[str]]


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory, cache_path: Path) -> Stacks:
    from pytest_ane.make.coremltools_quiet import import_coremltools

    import_coremltools()
    return Stacks(tmp_path_factory.mktemp("stacks"), cache_path / "stacks")


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """`says("cache", "list", code=0)`: the lines that a command prints, those of an error last."""

    def call(*arguments: object, code: int = 0) -> list[str]:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == code
        out, err = capsys.readouterr()
        return [*out.splitlines(), *err.splitlines()]

    return call


@pytest.fixture
def as_json(capsys: pytest.CaptureFixture[str]) -> AsJson:
    """`as_json("cache", "list")`: what the command prints with `--json`, read strictly."""

    def call(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        out = capsys.readouterr().out
        assert out.isascii()
        return json.loads(out, parse_constant=_refuse)

    return call


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
