"""Counts, as JSON and as text."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import parse_plan, summarise
from tests.gates.placement.plans import samples


@pytest.mark.parametrize(
    ("text", "line", "outcome"),
    [
        (
            samples.COUNTS_CHUNK,
            "conv_ane=? conv_non_ane=? · compute 1058/1058 ANE · GPU 0 · CPU 0",
            "resident",
        ),
        (
            samples.COUNTS_TYPES,
            "conv_ane=36/36 conv_non_ane=0 · compute 217/217 ANE · GPU 0 · CPU 0",
            "resident",
        ),
        (
            samples.COUNTS_TEXT,
            "conv_ane=4/4 conv_non_ane=0 · compute 148/148 ANE · GPU 0 · CPU 0",
            "resident",
        ),
        (
            samples.COUNTS_OPS,
            "conv_ane=1/1 conv_non_ane=0 · compute 1/2 ANE · GPU 0 · CPU 1 · "
            "1 compile-time (1 const)",
            "not resident",
        ),
        (
            samples.COUNTS_SHARE,
            "conv_ane=? conv_non_ane=? · compute 412/480 ANE · 68 on GPU or CPU",
            "not resident",
        ),
        # The convolutions alone are no proof, and a file's own opinion is none either.
        (
            "conv_ane=36/36 conv_non_ane=0 PASS=True",
            "conv_ane=36/36 conv_non_ane=0 · compute 0/0 ANE · GPU 0 · CPU 0",
            "inconclusive",
        ),
        (
            '{"aneOps":0,"nonANE":0,"totalOps":9}',
            "conv_ane=? conv_non_ane=? · compute 0/0 ANE · GPU 0 · CPU 0",
            "inconclusive",
        ),
    ],
)
def test_counts_are_summed(text: str, line: str, outcome: str) -> None:
    found = summarise(parse_plan(text.encode()))
    assert (found.line, found.outcome) == (line, outcome)


def test_lines_and_lists_of_chunks_add_up() -> None:
    lines = parse_plan(f"{samples.COUNTS_CHUNK}\n{samples.COUNTS_CHUNK}".encode())
    listed = parse_plan(f"[{samples.COUNTS_CHUNK},{samples.COUNTS_CHUNK}]".encode())
    assert lines == listed
    assert [tally.label for tally in lines.tallies] == ["chunk1", "chunk1"]
    assert summarise(lines).compute == 2116


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conv_total=4 conv_ane=3 conv_non_ane=0", "3 and conv_non_ane 0 are not 4 together"),
        ("conv_ane=4", "what it is counted of, is missing"),
        ("compute_total=4 compute_ane=5", "5 operations on the ANE, of 4"),
        ("conv_ane=36/36 conv_total=35", "conv_total is 36 and 35"),
        ('{"aneOps":3,"nonANE":2,"totalOps":4}', "5 operations have a device, of 4"),
        ('{"aneOps":true,"totalOps":4}', "aneOps is no count"),
        ('{"ane_ops":3,"schedulable_ops":9,"total_ops":4}', "9 schedulable operations, of 4"),
        ("op=a preferred=NPU supported=[]", "'NPU' is no device"),
    ],
)
def test_contradictions_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan(text.encode())
