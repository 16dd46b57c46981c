"""A model over a source: its configuration, embedding, layouts, ports, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.manifest import load
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Branch, Cut, Port, Wire
from pytest_ane.models.families.decoder import Layer, Mixture
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.families.zaya import ZayaConfig, ZayaModel, open_model, spread, wiring
from pytest_ane.models.families.zaya._forms import OVERFLOW_BIAS, ZayaWeights
from pytest_ane.models.sources import SeededSource
from tests.models.families.llama.tiny import MemorySource
from tests.models.families.rotary import plain_rotary
from tests.models.families.zaya.tiny import CONTEXT, tiny_model, tiny_source

CUT = Cut((), context=9)


def read(drop: tuple[str, ...] = (), **changes: Any) -> ZayaConfig:
    """The configuration of a tiny model with some of its keys dropped or changed."""
    source = tiny_source()
    source.values = {k: v for k, v in source.values.items() if k not in drop} | changes
    return ZayaConfig.read(source, 3, CUT)[0]


def test_a_synthetic_model_is_the_published_zaya1_8b() -> None:
    config, names = ZayaConfig.read(SeededSource(0, lambda name, shape: None), 3, Cut(()))
    assert config == ZayaConfig(
        family="zaya",
        width=2048,
        ffn=2048,
        heads=8,
        kv_heads=2,
        head=128,
        vocabulary=262_272,
        epsilon=1e-5,
        scale=128**-0.5,
        layers=(Layer(0), Layer(None, sparse=True)) * 40,
        rotaries=(plain_rotary(64, 5e6),),
        mixture=Mixture(16, 1, 2048, normalized=False),
        slices=3,
        context=2048,
        variant="published",
        router=256,
    )
    assert not names.folded
    assert (config.q_channels, config.kv_channels, config.qk_channels) == (1024, 256, 1280)


def test_dimensions_are_read_from_the_configuration() -> None:
    config = read()
    assert (len(config.layers), config.width, config.heads, config.kv_heads) == (2, 12, 4, 2)
    assert (config.head, config.ffn, config.context) == (4, 8, 9)
    assert config.rotaries == (plain_rotary(2, 100.0),)


@pytest.mark.parametrize(
    ("drop", "changes"),
    [
        (("head_dim",), {"kv_channels": 4}),
        (("num_query_groups",), {"num_key_value_heads": 2}),
        (("rope_theta",), {"rotary_base": 100.0}),
        # Where the model has more attention heads on paper than its shards have queries.
        ((), {"cca_num_q_heads": [4, 0], "num_attention_heads": 8}),
        (("ffn_hidden_size",), {"ffn_hidden_size_list": [0, 16]}),
        ((), {"zaya_mlp_expansion": [0, 6]}),
        ((), {"clamp_temp": False, "zaya_use_mod": True, "sliding_window": None}),
    ],
)
def test_other_releases_say_the_same(drop: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert read(drop, **changes) == read()


@pytest.mark.parametrize(
    ("drop", "changes", "message"),
    [
        (("hidden_size",), {}, "tiny: config.json has none of hidden_size."),
        (("norm_epsilon",), {}, "tiny: config.json has none of norm_epsilon, rms_norm_eps."),
        ((), {"sliding_window": 4}, "tiny: config.json has sliding_window 4, which family 'zaya'"),
        ((), {"num_experts": 0}, "tiny: num_experts is 0, no positive number."),
        ((), {"num_experts": True}, "tiny: num_experts is True, no positive number."),
        ((), {"num_experts": []}, "tiny: num_experts is [], no positive number."),
        ((), {"num_experts": ["a", 2]}, "tiny: num_experts is ['a', 2], no positive number."),
        ((), {"num_query_groups": 0.5}, "tiny: num_query_groups is 0.5, no whole number"),
        ((), {"num_hidden_layers": 10**10}, "tiny: num_hidden_layers is 10000000000, no whole"),
        (
            (),
            {"partial_rotary_factor": 2},
            "tiny: config.json has rope_parameters.partial_rotary_factor 2; of a head's 4 channels "
            "an even number of at least 2 can turn.",
        ),
        ((), {"hidden_size": "2048"}, "tiny: hidden_size is '2048', no positive number."),
        ((), {"clamp_temp": True}, "clamp_temp is True, and family 'zaya' computes False only."),
        ((), {"cca_time0": 3}, "tiny: cca_time0 is 3, and family 'zaya' computes 2 only."),
        ((), {"num_query_groups": 3}, "tiny: 4 query heads, 3 key heads of 4 channels"),
    ],
)
def test_what_is_missing_absurd_or_another_variant(
    drop: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError) as error:
        read(drop, **changes)
    assert message in str(error.value)


def test_wiring_names_the_family() -> None:
    state = (Branch("router", "set", -1),)
    assert wiring(["head.0", "L03", "L01", "L00"]) == (
        Wire("L00", kind="attention"),
        Wire("L01", kind="mixture", more=state),
        Wire("L03", takes=("x", "router"), kind="mixture", more=state),
        Wire("head.0", gives="logits", mode="append", kind="head"),
    )
    with pytest.raises(ManifestError, match=r"Family 'zaya' has no shard 'L00\.p0'"):
        wiring(["L00.p0"])


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


@pytest.mark.drawn
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


def reader(source: MemorySource, dtype: type = np.float32, variant: str = "notes") -> ZayaWeights:
    config, names = ZayaConfig.read(source, 2, Cut((), variant=variant))
    return ZayaWeights(source, config, names, dtype)


@pytest.mark.parametrize(("bias", "left_out"), [(5.0, False), (5.01, True), (-5.01, True)])
def test_convolutions_are_left_out_beyond_a_bias_of_5(bias: float, left_out: bool) -> None:
    source = tiny_source()
    source.tensors["model.layers.0.self_attn.qkv.conv_qk.0.bias"][3] = bias
    assert (reader(source).cca(0).convolutions is None) == left_out


def test_a_first_layer_that_scales_no_residual() -> None:
    source = tiny_source()
    for name in ("scale", "bias"):
        del source.tensors[f"model.layers.0.res_scale.residual_{name}"]
    residual = reader(source).cca(0).residual
    assert residual.residual_scale.tolist() == [1] * 12
    assert residual.residual_bias.tolist() == [0] * 12


def test_any_other_layer_must_have_all_its_tensors() -> None:
    source = tiny_source()
    del source.tensors["model.layers.1.res_scale.residual_scale"]
    with pytest.raises(KeyError):
        reader(source).mixture(1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_slice_of_the_head(tied: bool) -> None:
    source = tiny_source()
    table = source.tensors["model.embed_tokens.weight"]
    if not tied:
        table = source.tensors["lm_head.weight"] = -table
    _, projection = reader(source, np.float16).head(1)
    assert projection.dtype == torch.float16
    assert projection.tolist() == table[5:].tolist()


def test_an_attention_layer_s_ports() -> None:
    conversion = tiny_model().conversion("L00")
    assert conversion.inputs == (
        Port("x", (1, 12, "T", 1)),
        Port("cos", (1, 1, 2, "T")),
        Port("sin", (1, 1, 2, "T")),
        Port("mask", (1, 1, "T", CONTEXT)),
        Port("write", (1, 1, "T", CONTEXT)),
    )
    assert conversion.outputs == (Port("y", (1, 12, "T", 1)),)
    assert conversion.states == (Port("kv_cache", (4, 1, CONTEXT, 4)), Port("tail", (1, 1, 2, 28)))


def test_a_mixture_s_and_a_slice_s_ports() -> None:
    model = tiny_model(("L01", "head.0", "head.1"))
    mixture, slice_ = model.conversion("L01"), model.conversion("head.1")
    assert mixture.inputs == slice_.inputs == (Port("x", (1, 12, "T", 1)),)
    assert mixture.outputs == (Port("y", (1, 12, "T", 1)),)
    assert slice_.outputs == (Port("y", (1, 6, "T", 1)),)
    assert mixture.states == slice_.states == ()


def test_nothing_is_read_before_a_shard_is_asked_for() -> None:
    source = tiny_source()
    open_model(source, Cut(("L00", "head.0")))
    assert source.read == []


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.zaya_block.router.router_states_scale",
        "model.res_scale.hidden_states_scale",
        "lm_head.weight",
    ],
)
def test_tensors_that_a_published_model_has_beside(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros((11, 12), np.float32)
    open_model(source, Cut(("L00",)))


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.qkv_proj.q_proj.weight", "model.layers.0.self_attn.o_proj.bias"],
)
def test_a_tensor_that_would_be_left_out(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros(1, np.float32)
    with pytest.raises(SourceError) as error:
        open_model(source, Cut(("L00",)))
    assert f"'zaya' does not compute with its tensor {name!r} (1 such in all)" in str(error.value)


EXAMPLE = Path(__file__).parents[4] / "examples/zaya1-8b.toml"


def test_the_example_is_the_whole_model() -> None:
    (model,) = load(EXAMPLE).models
    family = get_family("zaya")
    cut = Cut(model.ids, model.max_tokens, variant=model.variant)
    opened = family.open_model(SeededSource(7, family.spread), cut)
    assert opened.description["variant"] == "notes"
    assert not opened.missing
    assert len(model.ids) == 83
    assert family.starts_whole(model.ids)
    assert opened.layout("L00").sees == "state"
