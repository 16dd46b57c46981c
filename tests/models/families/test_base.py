"""Streams: what a shard takes of them, and what becomes of its output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.models.families import (
    Conversion,
    Port,
    Ports,
    Streams,
    Wire,
    apply_output,
    ports_of,
    shard_input,
)

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
    assert np.array_equal(streams["moe"], MOE)


class _Family:
    """A user's family, which does not tell its ports."""

    description: dict[str, Any] = {}  # noqa: RUF012

    def conversion(self, shard: str) -> Conversion:
        return Conversion(None, (Port(shard, (1,)),), (Port("y", (1,)),), (Port("k", (2,)),))


class _Telling(_Family):
    def ports(self, shard: str) -> Ports:
        return Ports((), (Port(shard, (3,)),))


def test_ports_are_told_or_those_of_the_conversion() -> None:
    assert ports_of(_Family(), "a") == Ports(
        (Port("a", (1,)),), (Port("y", (1,)),), (Port("k", (2,)),)
    )
    assert ports_of(_Telling(), "a") == Ports((), (Port("a", (3,)),))
