"""Packs in ANE form: the reference's numbers, its choice among equals, and exact zeros in fp16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.decoder.ane import Router
from pytest_ane.models.families.gemma4.ane import AneCombiner, AnePack
from pytest_ane.models.families.gemma4.reference import route
from pytest_ane.models.families.gemma4.weights import RouterWeights
from tests.models.families.gemma4.tiny import ROOT, hidden, tiny_model, tiny_source, tiny_weights


def pack_module(source: Any, pack: int, dtype: npt.DTypeLike = np.float32) -> torch.nn.Module:
    """Pack of layer 0, the combiner for the last."""
    weights = tiny_weights(source, dtype)
    config = weights.config
    module = AnePack(config, weights.router(0), weights.banks(0, pack), pack)
    return AneCombiner(config, module, weights.combiner(0)) if pack == 7 else module


def run(module: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        y = module(torch.from_numpy(x.T.copy())[None, :, :, None].to(dtype))
    result: np.ndarray = y[0, :, :, 0].T.float().numpy()
    return result


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    per_pack=st.integers(1, 3),
    top=st.integers(1, 8),
    width=st.integers(2, 9),
    length=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_pack_agrees_with_the_reference(
    per_pack: int, top: int, width: int, length: int, seed: int
) -> None:
    changes: dict[str, Any] = {
        "num_experts": 8 * per_pack,
        "top_k_experts": top,
        "hidden_size": width,
    }
    model = tiny_model(seed=seed, **changes)
    for pack in range(8):
        x = hidden(length, 2 * width if pack == 7 else width, seed)
        expected = model.reference(f"L00.p{pack}")([x])[0]
        found = run(pack_module(model.source, pack), x)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
        if pack < 7:
            np.testing.assert_array_equal(found.any(axis=1), expected.any(axis=1))


@settings(max_examples=60, deadline=None)
@given(
    levels=st.lists(st.integers(0, 3), min_size=16, max_size=16),
    top=st.integers(1, 16),
)
def test_among_equals_packs_choose_what_the_reference_chooses(levels: list[int], top: int) -> None:
    """In fp16, with logits that are often equal: `top` experts in all."""
    config = tiny_weights(tiny_source(top_k_experts=top)).config
    assert config.mixture is not None
    projection = torch.tensor(levels)[:, None] * torch.eye(8)[0]
    weights = RouterWeights(projection, torch.ones(8), torch.ones(16), torch.ones(8))
    normed = torch.full((1, 8, 1, 1), 1.0).half()
    expected = route(torch.full((1, 8), 1e3), weights, config)[0]
    found = Router(config.mixture, projection.half())(normed).flatten().float()
    assert int((found > 0).sum()) == top
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_unchosen_is_exactly_zero(dtype: npt.DTypeLike) -> None:
    source = tiny_source(top_k_experts=1)
    x = hidden(12, 8)
    outputs = np.array([run(pack_module(source, pack, dtype), x) for pack in range(7)])
    live = outputs.any(axis=2)
    assert live.sum(axis=0).max() == 1
    assert 0 < live.sum() <= 12


def test_an_unchosen_expert_that_overflows_adds_nothing() -> None:
    """Gate times up is beyond fp16: weighted afterwards it would be 0 times infinity."""
    source = tiny_source(top_k_experts=1)
    x = hidden(1, 8)
    model = tiny_model(top_k_experts=1)
    unchosen = next(p for p in range(7) if not model.reference(f"L00.p{p}")([x])[0].any())
    bank = source.tensors[f"{ROOT}layers.0.experts.gate_up_proj"]
    bank[2 * unchosen : 2 * unchosen + 2] = 600 * np.sign(x[0])
    y = run(pack_module(source, unchosen, np.float16), x)
    np.testing.assert_array_equal(y, np.zeros_like(y))


def test_nan_comes_out_as_nan() -> None:
    x = hidden(1, 8)
    x[0, 3] = np.nan
    assert np.isnan(run(pack_module(tiny_source(), 0), x)).all()


def test_banks_hold_the_experts_side_by_side() -> None:
    source = tiny_source()
    gate, up, down = tiny_weights(source, np.float16).banks(1, 3)
    fused = source.tensors[f"{ROOT}layers.1.experts.gate_up_proj"].astype(np.float16)
    downs = source.tensors[f"{ROOT}layers.1.experts.down_proj"].astype(np.float16)
    np.testing.assert_array_equal(gate.numpy(), np.concatenate([fused[6, :4], fused[7, :4]]))
    np.testing.assert_array_equal(up.numpy(), np.concatenate([fused[6, 4:], fused[7, 4:]]))
    np.testing.assert_array_equal(down.numpy(), np.concatenate([downs[6], downs[7]], axis=1))
