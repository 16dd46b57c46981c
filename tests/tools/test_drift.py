"""`pytest-ane drift` and `bisect`: on real packages of a tiny model, one or two of them spoilt."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from pytest_ane.report.charts.run import drift as draw
from pytest_ane.tools.bisect import most_evaluations
from pytest_ane.tools.drift import Drift
from tests.tools.conftest import Says
from tests.tools.stacks import BLOCKS, Stacks

Run = Callable[..., list[str]]
NAMES = [f"L{i:02d}" for i in range(BLOCKS)]
SHARDS = BLOCKS + 2
BOTH = pytest.mark.parametrize("command", ["drift", "bisect"])


@pytest.fixture
def run(stacks: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says) -> Run:
    """`run("drift", ..., spoilt=[...])`: the lines of a command; those of its error come last.

    `edit` changes the manifest's text.
    """
    monkeypatch.chdir(tmp_path)

    def call(
        *arguments: str, spoilt: Sequence[str] = (), greedy: int = 3, positions: int = 8,
        code: int = 0, edit: Callable[[str], str] = str,
    ) -> list[str]:  # fmt: skip
        stacks.write(manifest := tmp_path / "shards.toml", spoilt, greedy, positions)
        manifest.write_text(edit(manifest.read_text()))
        return says(*arguments, f"--ane-cache={stacks.cache}", code=code)

    return call


def evaluations(line: str) -> int:
    return int(re.search(r"\((\d+) stack evaluations?\)\.$", line)[1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_drift_names_the_spoilt_shard(run: Run, seed: int) -> None:
    guilty = random.Random(seed).choice(NAMES)
    found = run("drift", spoilt=[guilty])
    assert found[-1].startswith(f"{guilty} breaks it: it fails alone in an otherwise exact stack.")
    assert found[-2].startswith("stack failed: ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_bisect_names_the_spoilt_shard(run: Run, seed: int) -> None:
    guilty = random.Random(seed).choice(NAMES)
    *trials, says = run("bisect", spoilt=[guilty])
    assert says.startswith(f"{guilty} is to blame: exact, nothing fails (")
    assert len(trials) == evaluations(says) <= most_evaluations(SHARDS, 1)
    assert trials[0].startswith(" 1. exact: none - red (")
    assert trials[-1].startswith(f" {len(trials)}. exact: {guilty} - green (")


@pytest.mark.slow
def test_a_good_stack(run: Run) -> None:
    found = run("drift")
    assert found[-1].startswith("No shard breaks it: ")
    assert found[-2].startswith("stack passed: ")
    rows = [line.split() for line in found if line.startswith(("L0", "head."))]
    assert [row[0] for row in rows] == [*NAMES, "head.0", "head.1"]
    assert all(row[1] == "1.0000" for row in rows)
    assert max(map(len, found[:-2])) <= 80
    (trial, says) = run("bisect")
    assert trial.startswith(" 1. exact: none - green (")
    assert says == "deep is green as it is: no shard is to blame (1 stack evaluation)."


@pytest.mark.drawn
@pytest.mark.slow
def test_drift_of_an_unproven_stack_is_not_green(run: Run) -> None:
    *found, error = run("drift", code=1, positions=32)
    assert "No shard" not in " ".join(found)
    assert found[-2].startswith("stack unproven: ")
    assert found[-1].startswith(
        "Unproven, so no shard can be blamed: 8 positions are judged, the first of each prompt left"
    )
    assert error == "pytest-ane: deep is unproven."


def test_bisect_of_an_unproven_stack_is_not_green(run: Run) -> None:
    trial, error = run("bisect", code=1, positions=32)
    assert trial.startswith(" 1. exact: none - unproven (")
    assert error.startswith(
        "pytest-ane: deep is unproven as it is, so no shard can be blamed: 8 positions are judged"
    )


@pytest.mark.slow
@BOTH
def test_a_spoilt_shard_is_named_where_little_is_judged(run: Run, command: str) -> None:
    assert "L03" in run(command, spoilt=["L03"], positions=32)[-1]


@pytest.mark.slow
def test_drift_as_json(run: Run) -> None:
    text = "\n".join(run("drift", "--json", spoilt=["L02"]))
    found = TypeAdapter(Drift).validate_json(text)
    assert [one.shard for one in found.shards] == [*NAMES, "head.0", "head.1"]
    document = json.loads(text)
    assert (document["command"], document["model"]) == ("drift", "deep")
    picture = draw(document)
    assert "It rises most at L02" in picture.description
    assert found.shards[2].own.rest.relative_l2 > 0.1
    assert {"backend", "L00", "head.1"} <= found.provenance.keys()
    assert len(found.end.prompts[0].positions) == 6


@pytest.mark.slow
def test_bisect_as_json(run: Run) -> None:
    found = json.loads("\n".join(run("bisect", "--json", spoilt=["L03"])))
    assert (found["outcome"], found["shards"]) == ("found", ["L03"])
    assert found["evaluations"][0] == {"exact": [], "status": "failed"}


@pytest.mark.parametrize(
    ("arguments", "edit", "sentence"),
    [
        (["--model", "other"], str, "shards.toml has no model 'other'"),
        (["--ane-manifest", "absent.toml"], str, "absent.toml"),
        ([], lambda text: '[models.half]\nfamily = "llama"\nsource = { path = "x.gguf" }\n'
         'shards = "L00"\n', "has no model that a family or a chain wires"),
        ([], lambda text: text.partition("[[models.deep.prompts]]")[0],
         "deep has no golden prompts"),
        # Their only position is the first, which is in no statistic.
        ([], lambda text: re.sub(r"ids = .*", "ids = [5]", text),
         "deep: no golden prompt has a second position, and the first is left out, so nothing can "
         "be compared; add a prompt of more tokens."),
    ],
)  # fmt: skip
@BOTH
def test_what_is_wrong_is_said_in_a_sentence(
    run: Run, command: str, arguments: list[str], edit: Callable[[str], str], sentence: str
) -> None:
    (line,) = run(command, *arguments, edit=edit, code=1)
    assert line.startswith("pytest-ane: ")
    assert sentence in line


def test_a_number_of_shards_is_1_or_more(says: Says) -> None:
    expected = "pytest-ane: --most 0: give a number from 1 on."
    assert says("bisect", "--most", "0", code=1) == [expected]
