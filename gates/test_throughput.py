"""Throughput: how fast, against the baseline of the same machine? Asked with `-m bench`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.verdict import Verdict
from pytest_ane.plugin.outcome import VerdictRecorder

pytestmark = pytest.mark.bench


def test_load(
    ane_load_benchmark: Callable[[], Speed],
    ane_against_baseline: Callable[[Speed], Verdict],
    ane_gate: VerdictRecorder,
) -> None:
    """Loading a shard up to its first prediction."""
    ane_gate(ane_against_baseline(ane_load_benchmark()))


@pytest.mark.parametrize("tokens", [1, "max"], ids=["T1", "Tmax"])
def test_call(
    tokens: int | Literal["max"],
    ane_shard_benchmark: Callable[..., Speed],
    ane_against_baseline: Callable[[Speed], Verdict],
    ane_gate: VerdictRecorder,
) -> None:
    """One call of a shard: a new token, and as many positions as it takes."""
    ane_gate(ane_against_baseline(ane_shard_benchmark(tokens)))


def test_decode(
    ane_decode_benchmark: Callable[..., Speed],
    ane_against_baseline: Callable[[Speed], Verdict],
    ane_gate: VerdictRecorder,
) -> None:
    """Greedy decoding through all shards, token by token."""
    ane_gate(ane_against_baseline(ane_decode_benchmark()))
