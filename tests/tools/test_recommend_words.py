"""The table and the lines as people read them."""

from __future__ import annotations

import math

from pytest_ane.tools._recommend import line, pareto, table
from pytest_ane.tools._recommend_search import Candidate

FACTS = {"cosine": 0.98, "top1": 0.95, "centred_cosine.min": 0.97}
FOUR = Candidate("4-bit", {}, 70_000_000, 0.5, "failed", ("Mean KL is high.", "And so on."))
SMALL = Candidate("mixed 1", {}, 104_000_000, 0.04, "passed", (), FACTS)
WORSE = Candidate("mixed 2", {}, 110_000_000, 0.05, "failed", ("Mean KL is high.",), FACTS)
LARGE = Candidate("int8", {}, 135_000_000, 0.01, "passed", (), FACTS)


def test_pareto_leaves_out_what_is_larger_and_no_better() -> None:
    assert pareto([LARGE, WORSE, FOUR, SMALL]) == [FOUR, SMALL, LARGE]


def test_one_without_kl_is_better_than_nothing_only_in_bytes() -> None:
    bare = Candidate("bare", {}, 60_000_000, math.nan, "failed", ("no",))
    assert pareto([bare, FOUR]) == [bare, FOUR]
    assert pareto([bare, Candidate("other", {}, 65_000_000, math.nan, "failed", ("no",))]) == [bare]


def test_table() -> None:
    assert list(table([FOUR, LARGE, WORSE, SMALL], SMALL)) == [
        "candidate     MB  cosine  top-1      KL  centred  verdict",
        "4-bit       70.0       -      -  0.5000        -  failed",
        "mixed 1    104.0  0.9800  95.0%  0.0400   0.9700  passed, recommended",
        "int8       135.0  0.9800  95.0%  0.0100   0.9700  passed",
    ]


def test_lines() -> None:
    assert line(SMALL) == "mixed 1: 104.0 MB, KL 0.0400, passed"
    assert line(FOUR) == "4-bit: 70.0 MB, KL 0.5000, failed: Mean KL is high. (and 1 more)"
    few = Candidate("few", {}, 70_000_000, 0.01, "unproven", ("4 positions are judged.",))
    assert line(few) == "few: 70.0 MB, KL 0.0100, unproven: 4 positions are judged."
    assert line(WORSE) == "mixed 2: 110.0 MB, KL 0.0500, failed: Mean KL is high."
