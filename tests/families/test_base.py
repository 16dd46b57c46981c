"""Streams: what a shard takes of them, and what becomes of its output."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.families import Streams, Wire, apply_output, shard_input

X, MOE = np.array([[1, 2], [5, 6]], np.float32), np.array([[3, 4], [7, 8]], np.float32)


def test_streams_enter_side_by_side() -> None:
    wire = Wire("L00.p7", takes=("x", "moe"))
    assert shard_input({"x": X, "moe": MOE}, wire).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("set", [[3, 4], [7, 8]]),
        ("add", [[4, 6], [12, 14]]),
        ("append", [[1, 2, 3, 4], [5, 6, 7, 8]]),
    ],
)
def test_an_output_replaces_adds_or_lengthens(mode: str, after: list[list[int]]) -> None:
    streams: Streams = {"x": X}
    apply_output(streams, Wire("L00", mode=mode), MOE)
    assert streams["x"].tolist() == after


@pytest.mark.parametrize("mode", ["set", "add", "append"])
def test_the_first_output_makes_the_stream(mode: str) -> None:
    streams: Streams = {}
    apply_output(streams, Wire("L00.p0", gives="moe", mode=mode), MOE)
    assert streams["moe"] is MOE
