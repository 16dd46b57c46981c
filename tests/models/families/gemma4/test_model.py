"""A model over a source: its configuration, embedding, layouts, ports, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomlkit
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Port, Wire, apply_output, shard_input
from pytest_ane.models.families._ane import AneHead, constant
from pytest_ane.models.families.decoder import DecoderConfig, Layer, Mixture
from pytest_ane.models.families.decoder._forms import Router
from pytest_ane.models.families.gemma4 import (
    FAMILY,
    Gemma4Model,
    layer_shards,
    starts_whole,
    wiring,
)
from pytest_ane.models.families.gemma4._forms import AneCombiner, AnePack, RouterWeights
from pytest_ane.models.sources import SeededSource, Source, Spread
from pytest_ane.models.sources._safetensors import SafetensorsSource
from pytest_ane.probes.seeded import gaussian, generator
from pytest_ane.tools._init_model import scaffold
from tests.models.families.gemma4.tiny import (
    ROOT,
    MemorySource,
    hidden,
    tiny_config,
    tiny_model,
    tiny_source,
)
from tests.models.sources.checkpoints import bf16, write_checkpoint


def read(source: Source) -> DecoderConfig:
    config, _ = FAMILY.read(source, Cut((), stateful=True))
    return config


def synthetic(**config: Any) -> MemorySource:
    return MemorySource({}, config, label="seeded 1", synthetic=True)


def test_a_synthetic_source_is_the_published_model() -> None:
    config = read(synthetic())
    assert (len(config.layers), config.width, config.ffn) == (30, 2816, 2112)
    assert config.mixture == Mixture(experts=128, top=8, ffn=704)
    sliding = Layer(0, 1024)
    whole = Layer(1, head=512, kv_heads=2, shared=True)
    assert config.layers == (*[sliding] * 5, whole) * 5
    assert config.heads_of(0) == (256, 8)
    assert config.heads_of(5) == (512, 2)
    assert (config.logit_cap, config.vocabulary, config.scale) == (30.0, 262_144, 1.0)
    near, far = (np.array(rotary.frequencies) for rotary in config.rotaries)
    np.testing.assert_allclose(near, 1e4 ** (-np.arange(128) / 128), rtol=1e-12)
    np.testing.assert_allclose(far[:64], 1e6 ** (-np.arange(64) / 256), rtol=1e-12)
    assert not far[64:].any()
    assert len(far) == 256


def test_a_share_that_a_synthetic_source_sets() -> None:
    """The rest of the published tables stays."""
    full = {"full_attention": {"partial_rotary_factor": 0.5}}
    _, far = read(synthetic(rope_parameters=full)).rotaries
    np.testing.assert_allclose(far.frequencies[1:2], 1e6 ** (-1 / 256), rtol=1e-12)
    assert np.count_nonzero(far.frequencies) == 128


def test_keys_that_a_synthetic_source_sets() -> None:
    config = read(synthetic(num_hidden_layers=4, hidden_size=64))
    assert (config.width, [layer.window for layer in config.layers]) == (64, [1024] * 3 + [None])


def test_a_checkpoint_s() -> None:
    config = read(tiny_source())
    assert (config.width, [layer.window for layer in config.layers]) == (8, [3, None])
    assert [rotary.frequencies for rotary in config.rotaries] == [(1.0, 0.1), (1.0, 0, 0, 0)]


def test_a_text_only_configuration() -> None:
    source = MemorySource({}, tiny_config())
    assert read(source) == read(tiny_source())


def test_keys_and_values_apart_have_the_usual_heads_everywhere() -> None:
    config = read(tiny_source(attention_k_eq_v=False))
    assert config.heads_of(1) == (8, 2)
    assert not config.layers[1].shared


def test_the_last_layer_is_global_whatever_the_list_says() -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = read(MemorySource({}, tiny_config(layer_types=kinds)))
    assert [layer.window for layer in config.layers] == [None, None]


def test_values_of_a_layer_whose_values_are_keys_are_not_left_out() -> None:
    with pytest.raises(SourceError, match=r"not compute with its tensor .*1.self_attn.v_proj"):
        read(tiny_source(layer_types=["full_attention", "sliding_attention"]))


def test_heads_of_global_layers_in_a_table_by_layer() -> None:
    """As transformers 5 saves them, in place of `global_head_dim`."""
    config = tiny_config(per_layer_config={"1": {"head_dim": 6, "num_key_value_heads": 4}})
    del config["global_head_dim"]
    assert read(MemorySource({}, config)).heads_of(1) == (6, 4)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", -1, "hidden_size is -1, no positive number"),
        ("num_key_value_heads", 0.5, "num_key_value_heads is 0.5, no whole number up to"),
        ("num_hidden_layers", 10**10, "num_hidden_layers is 10000000000, no whole number up to"),
        ("num_experts", 12, "12 experts, 3 chosen; they are cut into 8 packs"),
        ("top_k_experts", 17, "16 experts, 17 chosen"),
        ("num_attention_heads", 3, "3 query heads, 2 key heads and 4 channels"),
        ("num_global_key_value_heads", 3, "4 query heads over 3 key heads of 8 channels do not"),
        ("layer_types", ["sliding_attention"], "layer_types is .* for each of 2 layers"),
        ("hidden_activation", "silu", "hidden_activation is 'silu', .* 'gelu_pytorch_tanh' only"),
        ("hidden_size_per_layer_input", 256, "has hidden_size_per_layer_input 256, which family"),
        ("num_kv_shared_layers", 2, "has num_kv_shared_layers 2"),
        ("use_bidirectional_attention", "all", "has use_bidirectional_attention 'all'"),
        ("enable_moe_block", False, "has enable_moe_block False"),
        ("attention_bias", True, "has attention_bias True"),
        ("attn_logit_softcapping", 9.0, "has attn_logit_softcapping 9.0"),
        ("model_type", "gemma3_text", "architecture 'gemma3_text', expected 'gemma4_text'"),
        ("per_layer_config", {"1": {"sliding_window": 2}}, "has per_layer_config"),
        ("per_layer_config", {"0": {"head_dim": 6}}, "has per_layer_config"),
        ("per_layer_config", [6], "has per_layer_config"),
    ],
)
def test_refused(key: str, value: Any, says: str) -> None:
    source = MemorySource({}, {"text_config": tiny_config(**{key: value})})
    with pytest.raises(SourceError, match=says):
        read(source)


@pytest.mark.parametrize("key", ["sliding_window", "rope_parameters", "num_experts"])
def test_an_absent_key(key: str) -> None:
    config = tiny_config()
    del config[key]
    with pytest.raises(SourceError, match=f"config.json has no {key}"):
        read(MemorySource({}, config))


LAYER = layer_shards(0)


def test_a_layer_s_wires() -> None:
    wires = wiring(
        ["head.1", "L00.p7", "L01.attn", "head.0", "L00.p1", "L00.p0", "L00.attn", "L01.p0"]
    )
    assert wires == (
        Wire("L00.attn", kind="attention"),
        Wire("L00.p0", gives="moe", kind="pack"),
        Wire("L00.p1", gives="moe", mode="add", kind="pack"),
        Wire("L00.p7", takes=("x", "moe"), kind="last pack"),
        Wire("L01.attn", kind="attention"),
        Wire("L01.p0", gives="moe", kind="pack"),
        Wire("head.0", gives="logits", mode="append", kind="head"),
        Wire("head.1", gives="logits", mode="append", kind="head"),
    )


def test_packs_sum_into_what_the_last_takes() -> None:
    """With packs that give 1, 2, 3, ... the last one sees 28 beside x."""
    streams = {"x": np.full((2, 1), 9, np.float32)}
    for number, wire in enumerate(wiring(LAYER[1:8]), start=1):
        apply_output(streams, wire, np.full((2, 1), number, np.float32))
    last = wiring(LAYER[8:])[0]
    assert shard_input(streams, last).tolist() == [[9, 28], [9, 28]]


@pytest.mark.parametrize("shard", ["L00", "L00.p8", "L00.q0", "head", "l00.p0", "L00.p0.x"])
def test_unknown_ids(shard: str) -> None:
    with pytest.raises(ManifestError, match=r"has no shard .*L00\.p0 to L00\.p7"):
        wiring([shard])


@pytest.mark.parametrize(
    ("shards", "whole"),
    [
        ([], True),
        (["L00.attn"], True),
        (["L00.p0"], False),
        (["L00.p0", "L00.attn"], True),
        (["L00.attn", "L00.p1"], False),
        (LAYER, True),
        ([*LAYER, "L01.attn"], True),
        ([*LAYER, "L02.attn"], False),
        ([*LAYER, "head.0"], True),
        ([*LAYER[:-1], "head.0"], False),
        ([*LAYER[:-1], "L01.attn"], False),
    ],
)
def test_starts_whole(shards: list[str], whole: bool) -> None:
    assert starts_whole(shards) == whole


def test_a_share_of_a_global_head_turns() -> None:
    """Of 16 channels a quarter: pairs (0, 8) and (1, 9), at frequencies of all 16."""
    rotary = tiny_model(global_head_dim=16).layout("L01.attn").rotary
    assert rotary is not None
    cos, sin = rotary.tables(3, start=1)
    angle = np.outer([1, 2, 3], [1.0, 1000.0 ** (-2 / 16)])
    for pair in (0, 1):
        for channel in (pair, pair + 8):
            np.testing.assert_allclose(cos[:, channel], np.cos(angle[:, pair]), rtol=1e-6)
            np.testing.assert_allclose(sin[:, channel], np.sin(angle[:, pair]), rtol=1e-6)
    still = [*range(2, 8), *range(10, 16)]
    assert (cos[:, still] == 1).all()
    assert (sin[:, still] == 0).all()


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
    x = torch.from_numpy(gaussian(generator(1), (16, c.width))).T[None, :, :, None]
    norm, projection = weights.head(0)
    capped, plain = (AneHead(norm, projection, c.epsilon, cap)(x) for cap in (c.logit_cap, None))
    assert relative(plain, capped) > 0.02
    combiner, router, banks = weights.combiner(0), weights.router(0), weights.banks(0, 0)
    pack = AnePack(c, router, banks, 0)
    right = AneCombiner(c, pack, combiner)(torch.cat([x, x], dim=1))
    unscaled = AneCombiner(c, pack, replace(combiner, scalar=torch.ones(1)))
    assert relative(unscaled(torch.cat([x, x], dim=1)), right) > 0.2
    scale = router.expert_scale
    assert (scale == 0).any()
    assert (scale < 0).any()
    routed = router_of(c, router)(x) * constant(scale)
    for others in (scale.abs(), torch.where(scale == 0, 0.5, scale)):
        assert relative(router_of(c, router)(x) * constant(others), routed) > 0.02


def router_of(c: DecoderConfig, router: RouterWeights) -> Router:
    assert c.mixture is not None
    return Router(c.mixture, router.projection * router.scale)


def test_where_rounding_to_fp16_decides() -> None:
    """A row between the last expert chosen and the next: of the packs of these two and no other."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 256, "num_experts": 32}
    packs = tuple(f"L00.p{i}" for i in range(8))
    model = FAMILY.open_model(SeededSource(7, FAMILY.spread, config), Cut((*packs, "head.0")))
    w, c, mixture = model.weights.router(0), model.config, model.weights.mixture
    x = gaussian(generator(1), (64, c.width))
    scores = F.rms_norm(torch.from_numpy(x), (c.width,), w.scale, c.epsilon) @ w.projection.T
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
        Spread.with_outliers(0.125, 0.03)
    }


def published(source: MemorySource, folder: Path) -> Gemma4Model:
    """The same weights from disk."""
    tensors = {name: bf16(values) for name, values in source.tensors.items()}
    write_checkpoint(folder, tensors, config=source.config)
    return FAMILY.open_model(SafetensorsSource(folder), Cut(("L00.p0", "L01.p0")))


def test_a_missing_tensor(tmp_path: Path) -> None:
    source = tiny_source()
    del source.tensors[f"{ROOT}layers.1.router.per_expert_scale"]
    with pytest.raises(SourceError, match=r"layers\.1\.router\.per_expert_scale"):
        published(source, tmp_path).reference("L01.p0")([hidden(1, 8)])


def test_experts_in_another_layout(tmp_path: Path) -> None:
    """Transposed, as some savers keep them."""
    source = tiny_source()
    name = f"{ROOT}layers.0.experts.down_proj"
    source.tensors[name] = np.ascontiguousarray(source.tensors[name].swapaxes(1, 2))
    said = r"shape \(16, 4, 8\), and by its configuration 128 rows of 4"
    with pytest.raises(SourceError, match=said):
        published(source, tmp_path).conversion("L00.p0")


EXAMPLE = Path(__file__).parents[4] / "examples/gemma4.toml"


def test_what_routes_stays_fp16(tmp_path: Path) -> None:
    """Of a model so wide that nothing is too small to be compressed."""
    source = tiny_source(hidden_size=2080, num_experts=48)
    tensors = {name: bf16(values) for name, values in source.tensors.items()}
    write_checkpoint(tmp_path / "wide", tensors, config=source.config)
    found = scaffold(str(tmp_path / "wide"), tmp_path / "shards.toml", tmp_path / "cache")
    kept = tomlkit.parse(found.text).unwrap()["models"]["wide"]["compression"]["keep"]
    example = tomlkit.parse(EXAMPLE.read_text()).unwrap()["models"]["gemma4"]
    expected = example["compression"]["keep"]
    assert {*kept} - {*expected} == {f"{map_}_proj*" for map_ in "qkvo"}
    assert {*expected} <= {*kept}
