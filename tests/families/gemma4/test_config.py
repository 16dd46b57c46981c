"""Configurations: the published one, a checkpoint's, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.families.gemma4.config import Gemma4Config
from tests.families.gemma4.tiny import MemorySource, tiny_config, tiny_source


def synthetic(**config: Any) -> MemorySource:
    return MemorySource({}, config, label="seeded 1", synthetic=True)


def test_a_synthetic_source_is_the_published_model() -> None:
    config = Gemma4Config.read(synthetic())
    assert (config.layers, config.width, config.experts, config.top) == (30, 2816, 128, 8)
    assert (config.expert, config.ffn, config.pack) == (704, 2112, 16)
    assert config.global_layers == (5, 11, 17, 23, 29)
    assert config.attention(0) == (256, 8)
    assert config.attention(5) == (512, 2)
    assert (config.window, config.cap, config.vocabulary) == (1024, 30.0, 262_144)


def test_keys_that_a_synthetic_source_sets() -> None:
    config = Gemma4Config.read(synthetic(num_hidden_layers=4, hidden_size=64))
    assert (config.layers, config.width, config.global_layers) == (4, 64, (3,))


def test_a_checkpoint_s() -> None:
    config = Gemma4Config.read(tiny_source())
    assert (config.layers, config.width, config.global_layers) == (2, 8, (1,))
    assert (config.theta, config.global_theta, config.global_rotated) == (100.0, 1000.0, 0.25)


def test_a_text_only_configuration() -> None:
    source = MemorySource({}, tiny_config())
    assert Gemma4Config.read(source) == Gemma4Config.read(tiny_source())


def test_keys_and_values_apart_have_the_usual_heads_everywhere() -> None:
    config = Gemma4Config.read(tiny_source(attention_k_eq_v=False))
    assert config.attention(1) == (8, 2)


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
        ("num_attention_heads", 3, "3 query heads over 2 key heads"),
        ("layer_types", ["sliding_attention"], "layer_types is .* for each of 2 layers"),
        ("hidden_activation", "silu", "hidden_activation is 'silu', .* 'gelu_pytorch_tanh' only"),
        ("hidden_size_per_layer_input", 256, "hidden_size_per_layer_input is 256"),
        ("num_kv_shared_layers", 2, "num_kv_shared_layers is 2"),
        ("use_bidirectional_attention", "all", "use_bidirectional_attention is 'all'"),
    ],
)
def test_refused(key: str, value: Any, says: str) -> None:
    source = MemorySource({}, {"text_config": tiny_config(**{key: value})})
    with pytest.raises(SourceError, match=says):
        Gemma4Config.read(source)


def test_an_absent_key() -> None:
    config = tiny_config()
    del config["sliding_window"]
    with pytest.raises(SourceError, match="no key 'sliding_window'"):
        Gemma4Config.read(MemorySource({}, config))
