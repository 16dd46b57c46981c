"""A model over a source: embedding, ports, what the cut leaves out, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Port, get_family
from pytest_ane.models.families.decoder.reference import logits
from pytest_ane.models.families.gemma4 import FAMILY
from pytest_ane.models.families.gemma4.reference import combine, route
from pytest_ane.models.families.reference import rms_norm
from pytest_ane.models.sources import SeededSource, Spread
from pytest_ane.probes.seeded import gaussian, generator
from tests.models.families.gemma4.tiny import ROOT, tiny_model, tiny_source


def test_is_a_family() -> None:
    assert get_family("gemma4").VERSION


def test_embedding_is_scaled_by_the_root_of_the_width() -> None:
    model = tiny_model()
    table = model.source.tensors[f"{ROOT}embed_tokens.weight"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(model.embed([3, 0, 3]), table[[3, 0, 3]] * 8**0.5, rtol=1e-6)


def test_ports_of_attention() -> None:
    model = tiny_model(context=6)
    conversion = model.conversion("L01.attn")
    assert conversion.inputs == (
        Port("x", (1, 8, "T", 1)),
        Port("cos", (1, 1, 8, "T")),
        Port("sin", (1, 1, 8, "T")),
        Port("mask", (1, 1, "T", 6)),
        Port("write", (1, 1, "T", 6)),
    )
    cache = (1, 1, 8, 6)
    assert conversion.states == (Port("k_cache", cache), Port("v_cache", cache))
    assert model.conversion("L00.attn").states[0].shape == (2, 1, 4, 6)


def test_ports_of_packs_and_head() -> None:
    model = tiny_model(["head.0", "head.1"])
    expected = {"L00.p0": (8, 8), "L00.p7": (16, 8), "head.0": (8, 10), "head.1": (8, 11)}
    for shard, (taken, given) in expected.items():
        conversion = model.conversion(shard)
        assert conversion.inputs == (Port("x", (1, taken, "T", 1)),)
        assert conversion.outputs == (Port("y", (1, given, "T", 1)),)
        assert conversion.states == ()


def test_what_the_cut_leaves_out() -> None:
    model = tiny_model([f"L00.p{i}" for i in range(1, 8)])
    assert model.missing[:3] == ["L00.attn", "L00.p0", "L01.attn"]
    assert len(model.missing) == 11
    assert model.positions == 12


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(SourceError, match=r"tiny: has 2 layers, so no shard L02\.p0"):
        tiny_model(["L02.p0"])


def test_head_slices_with_a_gap() -> None:
    with pytest.raises(ManifestError, match=r"number them head\.0 to head\.1"):
        tiny_model(["head.0", "head.2"])


def test_a_tensor_that_would_be_left_out() -> None:
    source = tiny_source()
    source.tensors[f"{ROOT}layers.1.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
    with pytest.raises(SourceError, match=r"does not compute with its tensor .*q_proj\.bias"):
        FAMILY.open_model(source, Cut(()))


def test_towers_are_none_of_the_text_model_s() -> None:
    source = tiny_source()
    source.tensors["model.vision_tower.encoder.layers.0.norm.weight"] = np.zeros(4, np.float32)
    FAMILY.open_model(source, Cut(()))


def test_another_checkpoint() -> None:
    source = tiny_source()
    source.tensors = {"wte.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(SourceError, match=r"does not compute with its tensor 'wte\.weight'"):
        FAMILY.open_model(source, Cut(()))


@pytest.mark.parametrize("root", ["model.", "language_model.model."])
def test_other_savers_names(root: str) -> None:
    source, same = tiny_source(), tiny_model()
    source.tensors = {name.replace(ROOT, root): t for name, t in source.tensors.items()}
    x = np.ones((2, 8), np.float32)
    found = FAMILY.open_model(source, Cut(())).reference("L00.p2")([x])[0]
    np.testing.assert_array_equal(found, same.reference("L00.p2")([x])[0])


@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [
        ("layers.0.layer_scalar", (1,), 0.7, 0.05),
        ("layers.0.router.per_expert_scale", (16,), 0.7, 0.6),
        ("layers.0.self_attn.q_norm.weight", (256,), 0.25, 0.025),
        ("layers.0.post_attention_layernorm.weight", (64,), 0.1, 0.01),
        ("layers.0.post_feedforward_layernorm.weight", (64,), 0.1, 0.01),
        ("layers.0.post_feedforward_layernorm_1.weight", (64,), 1.0, 0.1),
        ("norm.weight", (64,), 10.0, 1.0),
        ("layers.0.router.scale", (64,), 1.0, 0.1),
        ("layers.0.router.proj.weight", (8, 64), 0.0, 1.5),
        ("embed_tokens.weight", (0, 64), 0.0, 0.125),
    ],
)
def test_spread(name: str, shape: tuple[int, ...], mean: float, std: float) -> None:
    found = FAMILY.spread(f"{ROOT}{name}", shape)
    assert (found.mean, found.std) == (mean, pytest.approx(std))


def relative(wrong: Tensor, right: Tensor) -> float:
    return float((wrong - right).norm() / right.norm())


def test_what_synthetic_weights_would_hide_is_seen() -> None:
    """Leaving out the layer's scalar, the soft cap, or the sign or zeros of an expert's scale."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 256, "num_experts": 32}
    model = FAMILY.open_model(SeededSource(7, FAMILY.spread, config), Cut(("L00.p0", "head.0")))
    weights, c = model.weights, model.config
    x = torch.from_numpy(gaussian(generator(1), (16, c.width)))
    head, combiner, router = weights.head(0), weights.combiner(0), weights.router(0)
    assert relative(logits(x, head, replace(c, logit_cap=None)), logits(x, head, c)) > 0.02
    unscaled = replace(combiner, scalar=torch.ones(1))
    assert relative(combine(x, x, unscaled, c), combine(x, x, combiner, c)) > 0.2
    routed = route(x, router, c)
    scale = router.expert_scale
    assert (scale == 0).any()
    assert (scale < 0).any()
    for others in (scale.abs(), torch.where(scale == 0, 0.5, scale)):
        assert relative(route(x, replace(router, expert_scale=others), c), routed) > 0.02


def test_where_rounding_to_fp16_decides() -> None:
    """A row between the last expert chosen and the next: of the packs of these two and no other."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 256, "num_experts": 32}
    packs = tuple(f"L00.p{i}" for i in range(8))
    model = FAMILY.open_model(SeededSource(7, FAMILY.spread, config), Cut((*packs, "head.0")))
    w, c, mixture = model.weights.router(0), model.config, model.weights.mixture
    x = gaussian(generator(1), (64, c.width))
    scores = (rms_norm(torch.from_numpy(x), c.epsilon) * w.scale) @ w.projection.T
    order = scores.argsort(dim=-1, descending=True)[:, mixture.top - 1 : mixture.top + 1]
    gaps = scores.gather(1, order) @ torch.tensor([1.0, -1.0])
    closest = int(gaps.argmin())
    for index, pack in enumerate(packs):
        (rows,) = model.undecided(pack)([x])  # type: ignore[misc]
        owns = any(int(expert) // (mixture.experts // 8) == index for expert in order[closest])
        assert (closest in rows) == owns
        assert all(gaps[row] < 0.05 for row in rows)
    assert model.undecided("head.0") is None


def test_big_matrices_have_outliers() -> None:
    names = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "experts.gate_up_proj")
    assert {FAMILY.spread(f"{ROOT}layers.0.{n}", (0, 64)) for n in names} == {
        Spread.of(0.125, 0.03)
    }
