"""Families against transformers: the same logits from the checkpoints that it saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import (
    CONTEXT,
    MAX_TOKENS,
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)

BOUND = 1e-4
FIRST = [*{case.family: case for case in reversed(CASES)}.values()]
"""One of each family is computed with every change."""
CALLS = (1, 1, 5, MAX_TOKENS, 3, MAX_TOKENS, MAX_TOKENS, 1, MAX_TOKENS, 7, 2, MAX_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case in FIRST else pytest.mark.drawn)
        for case in CASES
    ],
)
def test_logits(case: Case, tmp_path: Path) -> None:
    right = case.save(tmp_path)
    stateless, stateful = (case.open(tmp_path, stateful=states) for states in (False, True))
    for length in (1, 7, sum(CALLS)):
        ids = prompt(length)
        logits = expected(right, ids)
        for actual in (referred(stateless, ids), Converted(stateless)(ids)):
            assert difference(actual, logits) <= BOUND
            np.testing.assert_array_equal(actual.argmax(axis=1), logits.argmax(axis=1))
    for calls in (CALLS, (1,) * CONTEXT):
        ids, shards = prompt(sum(calls)), Converted(stateful)
        starts = np.cumsum((0, *calls[:-1]))
        parts = [shards(ids[s : s + n]) for s, n in zip(starts, calls, strict=True)]
        actual, logits = np.concatenate(parts), expected(right, ids)
        assert difference(actual, logits) <= BOUND
        np.testing.assert_array_equal(actual.argmax(axis=1), logits.argmax(axis=1))


def test_windows_are_crossed_and_rings_gone_around(tmp_path: Path) -> None:
    """The table would say little if its prompts stayed inside."""
    case = next(case for case in CASES if case.name == "gemma3")
    case.save(tmp_path)
    layouts = [case.open(tmp_path, stateful=True).layout(f"L{i:02d}") for i in range(7)]
    assert [layout.window for layout in layouts] == [5, 5, 5, 5, 5, None, 5]
    assert [layout.context for layout in layouts] == [32, 32, 32, 32, 32, CONTEXT, 32]
    assert sum(CALLS) > 32 + MAX_TOKENS


def test_a_spoilt_weight_is_seen(tmp_path: Path) -> None:
    case = CASES[0]
    right = case.save(tmp_path)
    model, ids = case.open(tmp_path, stateful=False), prompt(7)
    right.model.layers[1].self_attn.k_proj.weight.data[3] *= 1.05
    assert difference(referred(model, ids), expected(right, ids)) > BOUND
