"""The float32 reference against float64 loops over configurations, and its own small parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.gemma4.reference import route
from pytest_ane.models.families.gemma4.weights import RouterWeights
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
        f"{at}gate_up_proj[{8 * chosen + 4}]",
        f"{at}down_proj[{8 * chosen}]",
    ]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0, 0, 0, 0]),
        ([0, 3, 0, 3, 0, 3, 0, 0], [0, 0.5, 0, 0.5, 0, 0, 0, 0]),
        ([0, 0, 5, 0, 0, 0, 0, 5], [0, 0, 0.5, 0, 0, 0, 0, 0.5]),
    ],
)
def test_of_equals_the_lower_expert_is_chosen(logits: list[float], expected: list[float]) -> None:
    config = tiny_weights(tiny_source(num_experts=8, top_k_experts=2, hidden_size=4)).config
    projection = torch.tensor(logits)[:, None] * torch.tensor([1.0, 0, 0, 0])
    ones = torch.ones(4)
    weights = RouterWeights(projection, ones, torch.ones(8), ones)
    found = route(torch.tensor([[2.0, 0, 0, 0]]), weights, config)
    torch.testing.assert_close(found, torch.tensor([expected]))


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
