"""Mutated programs, run: a few of those that `python -m tests.fuzz.programs` runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz.programs import OPERATIONS, mutated, run_all, run_program, single


@pytest.mark.parametrize("computed", [False, True])
def test_the_seeds_run(tmp_path: Path, computed: bool) -> None:
    """Mutations of what is refused at once would reach nothing."""
    package = single("add", computed).save(tmp_path)
    refused = {
        op: outcome
        for op in OPERATIONS
        if (outcome := run_program(package, single(op, computed).model.SerializeToString()))
        != "ran"
    }
    assert refused == {}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_mutated_programs_stay_within_the_budget() -> None:
    lines: list[str] = []
    assert run_all(60, seed=1, jobs=1, first=0, say=lines.append) == 0, lines
    assert " ran" in lines[0]


def test_a_number_is_a_program() -> None:
    assert mutated(7) == mutated(7)
    assert mutated(7) != mutated(8)


# Found by mutation: an input of texts; pooling whose padding is most of it, which never ended.
@pytest.mark.parametrize("number", [4140, 4661])
def test_what_was_found(tmp_path: Path, number: int) -> None:
    assert run_program(single("add", False).save(tmp_path), mutated(number)).endswith("Error")
