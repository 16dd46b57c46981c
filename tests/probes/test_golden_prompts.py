"""Recorded logits: how they are packed, and what that may change."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.make import Cache
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.mlprogram.metrics.logits import compare_logits
from pytest_ane.models.families import Wire
from pytest_ane.probes.golden_prompts import pack, record_golden, reference_chain, unpack
from pytest_ane.probes.recording import TokenPrompt, record_hidden

LOGITS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 9)),
    elements=st.floats(-64, 64, width=32),
)


def through(logits: np.ndarray) -> np.ndarray:
    best, below = pack(logits)
    assert (best.dtype, below.dtype) == (np.float32, np.float16)
    return unpack(best, below)


@given(LOGITS)
def test_a_logit_moves_by_a_2048th_of_its_distance_from_the_best(logits: np.ndarray) -> None:
    distance = logits.max(axis=1, keepdims=True) - logits
    # fp16's smallest step, and a rounding of float32.
    slack = 2.0**-25 + 64 * 2.0**-23
    assert (abs(through(logits) - logits) <= distance / 2048 + slack).all()


@given(LOGITS)
def test_the_best_token_stays_the_best(logits: np.ndarray) -> None:
    found = through(logits)
    assert (found.max(axis=1) == logits.max(axis=1)).all()
    assert (np.take_along_axis(found, logits.argmax(axis=1)[:, None], 1)[:, 0]
            == found.max(axis=1)).all()  # fmt: skip


def test_statistics_move_within_a_bound() -> None:
    """Logits as a language model has them. KL of p and p e^d / Z is at most half the mean of d^2.

    That holds to second order, and d is at most distance / 2048.
    """
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (4, 49152)).astype(np.float32)
    logits[:, :3] += 15
    for row, position in zip(logits, compare_logits(logits, through(logits)), strict=True):
        distance = row.max() - row.astype(np.float64)
        p = np.exp(-distance) / np.exp(-distance).sum()
        assert position.top1
        assert 0 < position.kl <= 1.01 / 2 * (p * (distance / 2048) ** 2).sum() < 1e-5
        assert 1 - position.centred_cosine < 1e-6


def test_what_is_beyond_fp16_has_no_probability() -> None:
    assert through(np.array([[0.0, -1e30]], np.float32)).tolist() == [[0.0, -65504.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    first, second = through(np.array([[1.0, bad], [1.0, 2.0]], np.float32))
    assert not np.isfinite(first).all()
    assert second.tolist() == [1.0, 2.0]


WIRING = (Wire("L00"), Wire("head.0", gives="logits", mode="append"))


def broken_from(first: int) -> Any:
    """A model whose states are NaN from a position on."""

    def run(rows: Any) -> Any:
        return [np.where(np.arange(len(x))[:, None] < first, x, np.nan) for x in rows]

    return SimpleNamespace(
        embed=lambda ids: np.eye(4, dtype=np.float32)[list(ids)],
        reference=lambda shard: run if shard == "L00" else lambda rows: rows,
    )


@pytest.mark.parametrize(("first", "where"), [(1, "golden prompt 'p'"), (2, "the text after 'p'")])
def test_a_reference_that_is_not_finite_is_none(tmp_path: Path, first: int, where: str) -> None:
    with pytest.raises(SourceError) as error:
        record_golden(
            Cache(tmp_path), {}, lambda: [(TokenPrompt("p", (1, 2)), 3)], [], WIRING,
            lambda: reference_chain(broken_from(first), WIRING), str,
        )  # fmt: skip
    assert str(error.value) == (
        f"The float32 reference of the whole model is NaN or infinite for {where}, so nothing can "
        "be compared with it; repair the source of its weights."
    )


def test_hidden_states_that_are_not_finite_are_no_reference(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="reference of L00 is NaN or infinite for golden prompt"):
        record_hidden(
            Cache(tmp_path),
            {},
            lambda: [TokenPrompt("p", (1, 2))],
            [],
            WIRING,
            lambda: broken_from(1),
        )
