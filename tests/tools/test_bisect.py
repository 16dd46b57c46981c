"""`pytest-ane bisect`: on real packages of a tiny model, one or two of them spoilt."""

from __future__ import annotations

import json
import random
import re

import pytest

from pytest_ane.cli import main
from pytest_ane.tools.bisect import most_evaluations
from tests.tools.stacks import BLOCKS
from tests.tools.test_drift import NAMES, Run, run

__all__ = ["run"]
SHARDS = BLOCKS + 2


def evaluations(line: str) -> int:
    found = re.search(r"\((\d+) stack evaluations?\)\.$", line)
    assert found is not None, line
    return int(found[1])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_the_spoilt_shard_is_named(run: Run, seed: int) -> None:
    guilty = random.Random(seed).choice(NAMES)
    *trials, says = run("bisect", spoilt=[guilty])
    assert says.startswith(f"{guilty} is to blame: exact, it restores the verdict")
    assert len(trials) == evaluations(says) <= most_evaluations(SHARDS, 1)
    assert trials[0].startswith(" 1. exact: none - red (")
    assert trials[-1].startswith(f" {len(trials)}. exact: {guilty} - green (")


@pytest.mark.drawn
@pytest.mark.slow
def test_two_spoilt_shards_are_named(run: Run) -> None:
    guilty = sorted(random.Random(3).sample(NAMES, 2))
    *trials, says = run("bisect", spoilt=guilty)
    assert says.startswith(f"{guilty[0]}, {guilty[1]} are to blame: exact, they restore the ")
    assert len(trials) == evaluations(says) <= most_evaluations(SHARDS, 2)


@pytest.mark.slow
def test_as_json(run: Run) -> None:
    found = json.loads("\n".join(run("bisect", "--json", spoilt=["L03"])))
    assert (found["outcome"], found["shards"]) == ("found", ["L03"])
    assert found["evaluations"][0] == {"exact": [], "status": "failed"}


def test_a_number_of_shards_is_1_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "--most", "0"]) == 1
    assert capsys.readouterr().err == "pytest-ane: --most 0: give a number from 1 on.\n"


@pytest.mark.slow
def test_a_green_stack(run: Run) -> None:
    (trial, says) = run("bisect")
    assert trial.startswith(" 1. exact: none - green (")
    assert says == "deep is green as it is: no shard is to blame (1 stack evaluation)."


@pytest.mark.drawn
@pytest.mark.slow
def test_many_to_blame(run: Run) -> None:
    says = run("bisect", "--most", "2", spoilt=NAMES)[-1]
    assert says.startswith("More than 2 shards are to blame, so a search for a few ends here: the")


@pytest.mark.slow
@pytest.mark.drawn
def test_a_policy_that_the_reference_does_not_meet(run: Run) -> None:
    *trials, says = run("bisect", greedy=0)
    assert [line.partition(" (")[0] for line in trials] == [
        " 1. exact: none - red",
        " 2. exact: all - red",
    ]
    assert says.startswith("The reference itself does not meet the policy: No golden prompt asks ")
    assert says.endswith(" (2 stack evaluations)")
