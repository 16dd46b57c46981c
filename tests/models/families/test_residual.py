"""The residual path of every block, and the experts that its reference uses, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.models.families import residual_of, routing_of
from tests.models.families.gemma4.oracle import Oracle
from tests.models.families.gemma4.tiny import tiny_model as gemma
from tests.models.families.gemma4.tiny import tiny_source as gemma_source
from tests.models.families.llama.tiny import tiny_model as llama
from tests.models.families.zaya import oracle
from tests.models.families.zaya.tiny import tiny_model as zaya


def states(width: int, *lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, width)).astype(np.float32) for n in lengths]


def residual(model: Any, shard: str, sequences: list[np.ndarray]) -> list[np.ndarray]:
    path = residual_of(model, shard)
    assert path is not None
    return path(sequences)


def test_a_llama_block_adds_to_what_enters() -> None:
    """Without its last projections a block gives the residual path alone."""
    model = llama()
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        model.source.tensors[name] = np.zeros_like(model.source.tensors[name])
    sequences = states(model.config.width, 3, 1)
    for path, y in zip(
        residual(model, "L00", sequences), model.reference("L00")(sequences), strict=True
    ):
        np.testing.assert_array_equal(path, y)


@pytest.mark.parametrize("shard", ["L00", "L01"])
def test_a_zaya_layer_scales_and_shifts_it(shard: str) -> None:
    model = zaya(seed=2)
    own = oracle.weights(model.source.tensors, int(shard[1:]))
    sequences = states(12, 3, 2)
    for x, path in zip(sequences, residual(model, shard, sequences), strict=True):
        expected = x * own["res_scale.residual_scale"] + own["res_scale.residual_bias"]
        np.testing.assert_allclose(path, expected, rtol=1e-6, atol=1e-6)


def test_a_gemma_layer_ends_with_its_scalar() -> None:
    model = gemma(seed=2)
    oracle = Oracle(gemma_source(2), 0)
    both = states(2 * model.config.width, 3, 2)
    for x, path in zip(both, residual(model, "L00.p7", both), strict=True):
        expected = x[:, : model.config.width] * oracle.get("layer_scalar")[0]
        np.testing.assert_allclose(path, expected, rtol=1e-6)
    (x,) = states(model.config.width, 3)
    assert residual(model, "L00.attn", [x])[0] is x


@pytest.mark.parametrize(
    ("model", "shard"),
    [(llama, "head.0"), (zaya, "head.0"), (gemma, "head.0"), (gemma, "L00.p3")],
    ids=["llama head", "zaya head", "gemma head", "gemma pack"],
)
def test_there_is_none_in_heads_and_packs(model: Any, shard: str) -> None:
    assert residual_of(model(), shard) is None


def test_a_zaya_mixture_s_experts_above_an_even_share() -> None:
    model = zaya(seed=3)
    sequences = states(12, 6, 5)
    routing = routing_of(model, "L01")
    assert routing is not None
    own = oracle.weights(model.source.tensors, 1)
    found = [active for routes in routing(sequences) for active in routes]
    assert len(set(found)) > 2
    for row, active in zip(np.concatenate(sequences), found, strict=True):
        weights = oracle.routing(row.astype(np.float64), own)
        above = [e for e in range(3) if weights[e] > 1 / 4]
        assert list(active) == sorted(above, key=lambda e: -weights[e])


def test_a_gemma_pack_s_own_experts_among_the_chosen() -> None:
    model = gemma(seed=4)
    oracle = Oracle(gemma_source(4), 0)
    (x,) = states(model.config.width, 9)
    each = model.config.mixture.experts // 8
    together: list[list[int]] = [[] for _ in x]
    for pack in range(8):
        routing = routing_of(model, f"L00.p{pack}")
        assert routing is not None
        # The last pack takes the sum of the others beside the residual stream.
        given = np.concatenate([x, x], axis=1) if pack == 7 else x
        for position, active in enumerate(routing([given])[0]):
            assert set(active) <= set(range(pack * each, pack * each + each))
            together[position] += active
    for row, active in zip(x, together, strict=True):
        assert sorted(active) == sorted(oracle.routing(row.astype(np.float64)))


@pytest.mark.parametrize(
    ("model", "shard"),
    [(llama, "L00"), (zaya, "L00"), (zaya, "head.0"), (gemma, "L00.attn")],
    ids=["llama", "zaya attention", "zaya head", "gemma attention"],
)
def test_others_route_nothing(model: Any, shard: str) -> None:
    assert routing_of(model(), shard) is None
