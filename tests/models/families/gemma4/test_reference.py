"""The float32 reference against float64 loops over configurations, and ANE forms against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.gemma4 import Gemma4Model
from pytest_ane.models.families.gemma4._forms import AneCombiner, AnePack
from tests.models.families.gemma4.tiny import ROOT, hidden, tiny_model, tiny_source, tiny_weights

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


def test_experts_that_are_not_chosen_are_not_read_and_give_exactly_zero() -> None:
    model, x = tiny_model(top_k_experts=1), hidden(1, 8)
    chosen = [model.routed(f"L00.p{pack}")([x])[0][0] for pack in range(7)]  # type: ignore[misc]
    assert sum(map(len, chosen)) <= 1
    for pack, experts in enumerate(chosen):
        model.source.read.clear()  # type: ignore[attr-defined]
        y = model.reference(f"L00.p{pack}")([x])[0]
        assert y.any() == bool(experts)
        read = [name for name in model.source.read if "experts" in name]  # type: ignore[attr-defined]
        names = ("gate_up_proj", "down_proj")
        assert read == [f"{ROOT}layers.0.experts.{n}[{8 * e}]" for e in experts for n in names]


def test_sequences_are_apart() -> None:
    """What one sequence holds changes nothing in another."""
    model = tiny_model()
    a, b = hidden(4, 8, 1), hidden(2, 8, 2)
    for shard in ("L00.attn", "L00.p1"):
        run = model.reference(shard)
        np.testing.assert_allclose(run([a, b])[1], run([b])[0], rtol=1e-6, atol=1e-7)


CONTEXT = 12


def steps(model: Gemma4Model, shard: str, x: np.ndarray, size: int) -> np.ndarray:
    """Attention on `x [T, C]`, `size` positions a call, in float32."""
    layout, module = model.layout(shard), model.conversion(shard).module.float()
    rows = []
    with torch.no_grad():
        for start in range(0, len(x), size):
            inputs = layout.inputs(x[start : start + size], start)
            names = ("x", "cos", "sin", "mask", "write")
            y = module(*(torch.from_numpy(inputs[name]) for name in names))
            rows.append(layout.output({"y": y.numpy()}))
    return np.concatenate(rows)


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, CONTEXT),
    size=st.integers(1, 4),
    window=st.integers(1, CONTEXT),
    layer=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_calls_of_any_size_agree_with_the_reference(
    length: int, size: int, window: int, layer: int, seed: int
) -> None:
    model = tiny_model(seed=seed, sliding_window=window, context=CONTEXT)
    x, shard = hidden(length, 8, seed), f"L0{layer}.attn"
    expected = model.reference(shard)([x])[0]
    np.testing.assert_allclose(steps(model, shard, x, size), expected, rtol=2e-4, atol=2e-5)


def test_a_sliding_layer_forgets_and_a_global_one_does_not() -> None:
    """Position 5 with a window of 3 sees positions 3 to 5."""
    model = tiny_model(context=CONTEXT)
    x, other = hidden(6, 8), hidden(6, 8)
    other[:3] = hidden(3, 8, seed=9)
    for shard, forgets in (("L00.attn", True), ("L01.attn", False)):
        last = [steps(model, shard, rows, 2)[5] for rows in (x, other)]
        assert np.allclose(*last, atol=1e-6) == forgets


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
