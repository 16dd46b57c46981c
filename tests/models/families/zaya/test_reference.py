"""The float32 reference against plain loops in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families.zaya import oracle
from tests.models.families.zaya.tiny import tiny_model

TOLERANCE = 2e-5


def hidden(rng: np.random.Generator, length: int, width: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal((length, width)) * scale).astype(np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    width=st.integers(2, 9),
    experts=st.integers(1, 4),
    ffn=st.integers(1, 6),
    router=st.integers(1, 6),
    scale=st.sampled_from([1e-3, 1.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_a_mixture(
    lengths: list[int], width: int, experts: int, ffn: int, router: int, scale: float, seed: int
) -> None:
    model = tiny_model(width=width, experts=experts, ffn=ffn, router=router, seed=seed)
    rng = np.random.default_rng(seed)
    sequences = [hidden(rng, length, width, scale) for length in lengths]
    own = oracle.weights(model.source.tensors, 1)
    given = model.reference("L01")(sequences)
    assert len(given) == len(sequences)
    for actual, x in zip(given, sequences, strict=True):
        assert_close(actual, oracle.mixture(x, own, experts))


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    width=st.integers(2, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    quarter=st.integers(1, 2),
    overflowing=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention(
    lengths: list[int],
    width: int,
    kv_heads: int,
    group: int,
    quarter: int,
    overflowing: bool,
    seed: int,
) -> None:
    model = tiny_model(
        width=width,
        kv_heads=kv_heads,
        group=group,
        head=4 * quarter,
        overflowing=overflowing,
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    sequences = [hidden(rng, length, width) for length in lengths]
    own = oracle.weights(model.source.tensors, 0)
    for actual, x in zip(model.reference("L00")(sequences), sequences, strict=True):
        expected = oracle.attention(
            x,
            own,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            rotary=2 * quarter,
            theta=100.0,
            convolved=not overflowing,
        )
        assert_close(actual, expected)


def test_no_expert_s_weight_is_dropped() -> None:
    """A router that is sure of the last slot leaves the residual stream alone."""
    model = tiny_model()
    tensors = model.source.tensors
    tensors["model.layers.1.zaya_block.router.balancing_biases"] = np.float32([0, 0, 0, 200])
    x = hidden(np.random.default_rng(0), 3, 12)
    (actual,) = model.reference("L01")([x])
    own = {n: tensors[f"model.layers.1.res_scale.{n}"] for n in ("residual_scale",)}
    own["bias"] = sum(
        tensors[f"model.layers.1.res_scale.{n}_bias"] for n in ("residual", "hidden_states")
    )
    np.testing.assert_allclose(
        actual, x * own["residual_scale"] + own["bias"], rtol=1e-5, atol=1e-6
    )


def test_the_head_s_slices_side_by_side_are_the_logits() -> None:
    model = tiny_model(("head.0", "head.1", "head.2"))
    x = hidden(np.random.default_rng(0), 3, 12)
    parts = [model.reference(f"head.{i}")([x[:1], x[1:]]) for i in range(3)]
    actual = np.concatenate([np.concatenate(part) for part in parts], axis=1)
    tensors = model.source.tensors
    norm = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-5)
    expected = norm * tensors["model.final_norm.weight"] @ tensors["model.embed_tokens.weight"].T
    assert_close(actual, expected)


def test_one_expert_at_a_time_is_read() -> None:
    """Nothing of the experts is read before the reference is called, and each once a call."""
    model = tiny_model()
    reference = model.reference("L01")
    source = model.source
    assert not [name for name in source.read if "experts" in name]
    source.read.clear()
    reference([np.ones((1, 12), np.float32), np.ones((2, 12), np.float32)])
    assert len(source.read) == len(set(source.read)) == 2 * 3
