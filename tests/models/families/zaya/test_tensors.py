"""Synthetic weights keep activations of the order of a trained model's."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.models.families import Cut
from pytest_ane.models.families.zaya import ZayaModel, open_model, spread
from pytest_ane.models.families.zaya.weights import OVERFLOW_BIAS
from pytest_ane.models.sources import SeededSource

SMALLER = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "head_dim": 32,
    "ffn_hidden_size": 512,
    "zaya_mlp_expansion": 64,
    "vocab_size": 500,
}


@pytest.fixture(scope="module")
def model() -> ZayaModel:
    return open_model(SeededSource(7, spread, SMALLER), Cut(("L00", "head.0"), variant="notes"))


@pytest.mark.parametrize("shard", ["L00", "L01", "L02", "L03"])
def test_a_layer_gives_about_a_tenth_of_what_enters(model: ZayaModel, shard: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    (y,) = model.reference(shard)([x])
    prefix = f"model.layers.{int(shard[1:])}.res_scale.residual_"
    scale, bias = (model.source.tensor(f"{prefix}{name}", (256,)) for name in ("scale", "bias"))
    given = np.sqrt(np.mean((y - x * scale - bias) ** 2))
    assert 1 / 20 < given < 1 / 4


def test_logits_are_moderate(model: ZayaModel) -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    (logits,) = model.reference("head.0")([x])
    assert 0.5 < logits.std() < 5


@pytest.mark.parametrize(("layer", "overflowing"), [(0, True), (2, False), (76, True), (78, True)])
def test_the_layers_that_overflow(layer: int, overflowing: bool) -> None:
    found = spread(f"model.layers.{layer}.self_attn.qkv.conv_qk.0.bias", (1280,))
    assert (found.mean - 3 * found.std > OVERFLOW_BIAS) == overflowing
    assert (abs(found.mean) + 5 * found.std < OVERFLOW_BIAS) != overflowing


def test_only_the_big_matrices_have_outliers() -> None:
    experts = "model.layers.1.zaya_block.experts.local_experts.0."
    assert spread(f"{experts}linear_fc1.weight", (4096, 2048)).outliers == 0.03
    assert spread("model.layers.1.zaya_block.router.down_proj.weight", (256, 2048)).outliers == 0
    assert spread("model.layers.1.input_norm.weight", (2048,)).mean == 1
    assert spread("model.layers.1.zaya_block.router.balancing_biases", (17,)).std < 0.1
