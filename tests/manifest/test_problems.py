"""Sentences about problems, and their order."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.manifest.problems import (
    Problem,
    at_key,
    at_table,
    at_value,
    dotted,
    label,
    report,
    shown,
)

PROMPT = ("models", "m", "prompts", 1)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (at_value(("models", "m", "target"), "x", "bad"), '[models.m] target = "x": bad'),
        (at_value((*PROMPT, "greedy"), -1, "bad"), "[[models.m.prompts]] greedy = -1: bad"),
        (at_value((*PROMPT, "ids", 0), -1, "bad"), "[[models.m.prompts]] ids[0] = -1: bad"),
        (at_value(PROMPT, {"name": "x"}, "bad"), "[[models.m.prompts]] bad"),
        (at_value(PROMPT, 3, "bad"), "[models.m] prompts[1] = 3: bad"),
        (at_value(("defaults",), 3, "bad"), "defaults = 3: bad"),
        (at_key(("models", "m", "x"), "unknown"), "[models.m] unknown"),
        (at_key(("x",), "unknown"), "unknown"),
        (at_table((), "empty"), "empty"),
        (at_table(("models", "m", "shard", "head.0"), "bad"), '[models.m.shard."head.0"] bad'),
    ],
)
def test_texts(problem: Problem, text: str) -> None:
    assert problem.text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (0.5, "0.5"),
        (math.nan, "nan"),
        ('a "b"\n', r'"a \"b\"\n"'),
        ("é", '"é"'),
        ([1, "a"], '[1, "a"]'),
        ([{"a b": 1}], '[{ "a b" = 1 }]'),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ("x" * 100, '"' + "x" * 56 + "..."),
    ],
)
def test_values_as_toml_writes_them(value: Any, text: str) -> None:
    assert shown(value) == text


def test_names_of_tables() -> None:
    assert dotted(("models", "zaya1-8b", "shard", "L0[0-3]")) == 'models.zaya1-8b.shard."L0[0-3]"'


def test_files_below_the_current_folder_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert label(tmp_path / "a" / "shards.toml") == str(Path("a", "shards.toml"))
    assert label(Path("/elsewhere/shards.toml")) == str(Path("/elsewhere/shards.toml"))


def test_a_report_is_in_the_file_s_order_and_says_a_thing_once() -> None:
    text = "[a]\nx = 1\ny = 2\n"
    problems = [
        Problem(("a", "y"), "second"),
        Problem(("a", "x"), "first: did you mean 'z'?"),
        Problem(("a", "y"), "second"),
        Problem(("b",), "of the whole file"),
    ]
    assert report(Path("/m.toml"), text, problems) == (
        "/m.toml: of the whole file.\n/m.toml:2: first: did you mean 'z'?\n/m.toml:3: second."
    )
