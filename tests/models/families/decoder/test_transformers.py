"""Families against transformers: the same logits from the checkpoints that it saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families._ane import Chosen
from pytest_ane.models.families.decoder._config import Mixture
from pytest_ane.models.families.decoder._forms import Router
from pytest_ane.models.reference import close_choices
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


MOE = next(case for case in CASES if case.name == "qwen3-moe-normalized-steps")


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=7), st.integers(1, 4))
@settings(max_examples=60)
def test_the_chosen_are_the_largest_and_of_equals_the_first(logits: list[int], top: int) -> None:
    tensor = torch.tensor(logits, dtype=torch.float32)[None, :, None, None]
    chosen = Chosen(len(logits), top, torch.float32)(tensor)[0, :, 0, 0]
    order = sorted(range(len(logits)), key=lambda e: (-logits[e], e))
    assert sorted(order[:top]) == chosen.nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("normalized", "total"), [(True, 1.0), (False, (3 + 2) / (3 + 2 + 1 + 1))])
def test_shares_of_the_chosen(normalized: bool, total: float) -> None:
    """Of logits log 3, log 2, 0 and 0 the first two are chosen."""
    weight = torch.log(torch.tensor([[3.0], [2.0], [1.0], [1.0]]))
    router = Router(Mixture(4, 2, 1, normalized), weight)
    shares = router(torch.ones(1, 1, 1, 1))[0, :, 0, 0]
    assert shares.tolist() == pytest.approx([total * 3 / 5, total * 2 / 5, 0, 0])
    assert shares[2:].tolist() == [0, 0]


def test_choices_that_rounding_decides() -> None:
    projection = torch.tensor([[1.0, 0], [1.0001, 0], [0, 1.0]])
    rows = torch.tensor([[1.0, 0.0], [0.5, 4.0], [0.0, 0.0]])
    close = close_choices(rows, projection, top=1)
    assert close.tolist() == [[True, True, False], [False, False, False], [True, True, True]]
    assert not close_choices(rows, projection, top=3).any()


def test_who_is_chosen(tmp_path: Path) -> None:
    MOE.save(tmp_path)
    model = MOE.open(tmp_path, stateful=False)
    hidden = model.embed(prompt(9))
    assert [model.routed(f"L{i:02d}") is None for i in range(4)] == [True, False, True, True]
    assert model.routed("head.0") is None
    routed, undecided = model.routed("L01"), model.undecided("L01")
    assert routed is not None
    assert undecided is not None
    ((routes),) = routed([hidden])
    assert len(routes) == 9
    assert all(len(set(route)) == 3 and max(route) < 4 for route in routes)
    assert len({route[0] for route in routes}) > 1
    assert undecided([hidden, np.zeros_like(hidden)]) == [(), tuple(range(9))]


def test_the_shared_expert_counts_by_its_own_sigmoid(tmp_path: Path) -> None:
    """A model without it, or one that weighs it otherwise, would be seen."""
    case = next(case for case in CASES if case.name == "qwen2-moe")
    right = case.save(tmp_path)
    ids, model = prompt(7), case.open(tmp_path, stateful=False)
    right.model.layers[1].mlp.shared_expert_gate.weight.data *= 1.5
    assert difference(referred(model, ids), expected(right, ids)) > 1e-3
    right.model.layers[1].mlp.shared_expert.down_proj.weight.data.zero_()
    assert difference(referred(model, ids), expected(right, ids)) > 1e-2
