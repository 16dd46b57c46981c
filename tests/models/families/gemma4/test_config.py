"""Configurations: the published one, a checkpoint's, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.decoder import DecoderConfig, Layer, Mixture
from pytest_ane.models.families.gemma4 import FAMILY
from pytest_ane.models.sources import Source
from tests.models.families.gemma4.tiny import MemorySource, tiny_config, tiny_source


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
        (
            "num_key_value_heads",
            0.5,
            "num_key_value_heads is 0.5, no whole number up to 16,777,216",
        ),
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
