"""Throughput: how fast, against the baseline of the same machine? Asked with `-m bench`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.plugin.keeper import GateKeeper

pytestmark = pytest.mark.bench


def test_load(
    load_benchmark: Callable[[], Speed],
    against_baseline: Callable[[Speed], Verdict],
    gate: GateKeeper,
) -> None:
    """Loading a shard up to its first prediction."""
    gate(against_baseline(load_benchmark()))


@pytest.mark.parametrize("tokens", [1, "max"], ids=["T1", "Tmax"])
def test_call(
    tokens: int | Literal["max"],
    shard_benchmark: Callable[..., Speed],
    against_baseline: Callable[[Speed], Verdict],
    gate: GateKeeper,
) -> None:
    """One call of a shard: a new token, and as many positions as it takes."""
    gate(against_baseline(shard_benchmark(tokens)))


def test_decode(
    decode_benchmark: Callable[..., Speed],
    against_baseline: Callable[[Speed], Verdict],
    gate: GateKeeper,
) -> None:
    """Greedy decoding through all shards, token by token."""
    gate(against_baseline(decode_benchmark()))
