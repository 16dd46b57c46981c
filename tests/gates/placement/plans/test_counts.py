"""Counts, as JSON and as text."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement.plans import parse_plan, summarise
from pytest_ane.mlprogram.errors import PlanError
from tests.gates.placement.plans import samples


@pytest.mark.parametrize(
    ("text", "convs", "ane", "compute", "outcome"),
    [
        (samples.COUNTS_CHUNK, None, 1058, 1058, "resident"),
        (samples.COUNTS_TYPES, (36, 36), 217, 217, "resident"),
        (samples.COUNTS_TEXT, (4, 4), 148, 148, "resident"),
        (samples.COUNTS_OPS, (1, 1), 1, 2, "not resident"),
        (samples.COUNTS_SHARE, None, 412, 480, "not resident"),
        # The convolutions alone are no proof, and a file's own opinion is none either.
        ("conv_ane=36/36 conv_non_ane=0 PASS=True", (36, 36), 0, 0, "inconclusive"),
        ('{"aneOps":0,"nonANE":0,"totalOps":9}', None, 0, 0, "inconclusive"),
    ],
)
def test_counts_are_summed(
    text: str, convs: tuple[int, int] | None, ane: int, compute: int, outcome: str
) -> None:
    summary = summarise(parse_plan(text.encode()))
    assert (summary.conv_ane, summary.conv_total) == (convs or (None, None))
    assert (summary.devices.get("ANE", 0), summary.compute) == (ane, compute)
    assert summary.outcome == outcome


def test_lines_and_lists_of_chunks_add_up() -> None:
    lines = parse_plan(f"{samples.COUNTS_CHUNK}\n{samples.COUNTS_CHUNK}".encode())
    listed = parse_plan(f"[{samples.COUNTS_CHUNK},{samples.COUNTS_CHUNK}]".encode())
    assert lines == listed
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
