"""The float32 reference against float64 loops over configurations, and ANE forms against it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.decoder._ane import Router
from pytest_ane.models.families.gemma4 import Gemma4Model
from pytest_ane.models.families.gemma4._forms import AneCombiner, AnePack
from tests.models.families.gemma4.oracle import Oracle
from tests.models.families.gemma4.tiny import ROOT, hidden, tiny_model, tiny_source, tiny_weights

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    pairs=st.integers(1, 3),
    window=st.integers(1, 8),
    layer=st.integers(0, 1),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention(
    lengths: list[int],
    kv_heads: int,
    group: int,
    pairs: int,
    window: int,
    layer: int,
    shared: bool,
    seed: int,
) -> None:
    """Grouped queries, norms of heads, both kinds of RoPE, the window, values that are keys."""
    changes: dict[str, Any] = {
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": kv_heads,
        "head_dim": 2 * pairs,
        "global_head_dim": 8 * pairs,
        "attention_k_eq_v": shared,
        "sliding_window": window,
    }
    model = tiny_model(seed=seed, **changes)
    inputs = [hidden(n, 8, seed + i) for i, n in enumerate(lengths)]
    oracle = Oracle(tiny_source(seed, **changes), layer)
    outputs = model.reference(f"L0{layer}.attn")(inputs)
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_allclose(y, oracle.attention(x.astype(np.float64)), **CLOSE)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    per_pack=st.integers(1, 3),
    top=st.integers(1, 8),
    width=st.integers(2, 9),
    expert=st.integers(1, 5),
    length=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_packs_add_up_to_the_whole_layer(
    per_pack: int, top: int, width: int, expert: int, length: int, seed: int
) -> None:
    changes: dict[str, Any] = {
        "num_experts": 8 * per_pack,
        "top_k_experts": top,
        "hidden_size": width,
        "moe_intermediate_size": expert,
    }
    model = tiny_model(seed=seed, **changes)
    x = hidden(length, width, seed)
    oracle = Oracle(tiny_source(seed, **changes), 0)
    total = np.zeros_like(x)
    for pack in range(7):
        given_ = model.reference(f"L00.p{pack}")([x])[0]
        among = range(pack * per_pack, (pack + 1) * per_pack)
        expected = [oracle.moe(row, among) for row in x.astype(np.float64)]
        np.testing.assert_allclose(given_, expected, **CLOSE)
        total += given_
    y = model.reference("L00.p7")([np.concatenate([x, total], axis=1)])[0]
    expected = [oracle.feed_forward(row) for row in x.astype(np.float64)]
    np.testing.assert_allclose(y, expected, **CLOSE)


def test_an_unchosen_pack_is_exactly_zero_and_reads_no_expert() -> None:
    model = tiny_model(top_k_experts=1)
    x = hidden(1, 8)
    (chosen,) = Oracle(model.source, 0).routing(x[0].astype(np.float64))  # type: ignore[arg-type]
    for pack in range(7):
        model.source.read.clear()  # type: ignore[attr-defined]
        y = model.reference(f"L00.p{pack}")([x])[0]
        read = [name for name in model.source.read if "experts" in name]  # type: ignore[attr-defined]
        assert y.any() == (chosen // 2 == pack) == bool(read)


def test_only_chosen_experts_are_read() -> None:
    model = tiny_model(top_k_experts=1)
    x = hidden(1, 8)
    (chosen,) = Oracle(model.source, 0).routing(x[0].astype(np.float64))  # type: ignore[arg-type]
    model.reference(f"L00.p{chosen // 2}")([x])
    read = [name for name in model.source.read if "experts" in name]  # type: ignore[attr-defined]
    at = f"{ROOT}layers.0.experts."
    assert read == [
        f"{at}gate_up_proj[{8 * chosen}]",
        f"{at}down_proj[{8 * chosen}]",
    ]


def test_head_slices_are_the_capped_logits_of_the_embedding() -> None:
    model = tiny_model(["head.0", "head.1"])
    x = hidden(3, 8)
    tensors = model.source.tensors  # type: ignore[attr-defined]
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    raw = normed * tensors[f"{ROOT}norm.weight"] @ tensors[f"{ROOT}embed_tokens.weight"].T
    slices = [model.reference(f"head.{i}")([x])[0] for i in range(2)]
    assert [part.shape for part in slices] == [(3, 10), (3, 11)]
    np.testing.assert_allclose(np.concatenate(slices, axis=1), 5 * np.tanh(raw / 5), **CLOSE)


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


@pytest.mark.drawn
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
@given(levels=st.lists(st.integers(0, 3), min_size=16, max_size=16), top=st.integers(1, 16))
def test_among_equals_the_lower_expert_is_chosen(levels: list[int], top: int) -> None:
    """In fp16, with logits that are often equal: `top` experts in all."""
    config = tiny_weights(tiny_source(top_k_experts=top)).config
    assert config.mixture is not None
    projection = torch.tensor(levels)[:, None] * torch.eye(8)[0]
    normed = torch.full((1, 8, 1, 1), 1.0).half()
    first = sorted(range(16), key=lambda e: (-levels[e], e))[:top]
    shares = torch.tensor([math.exp(levels[e]) if e in first else 0.0 for e in range(16)])
    expected = shares / shares.sum()
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
