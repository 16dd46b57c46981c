"""Dimensions from metadata."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.families import Cut
from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.sources import Source
from tests.families.llama.tiny import tiny_source


def read(**changes: Any) -> LlamaConfig:
    """The configuration of a tiny model with some of its metadata changed."""
    source = tiny_source(layers=2, heads=4, kv_heads=2, head=8, ffn=20, vocabulary=11)
    source.values |= {key.replace("__", "."): value for key, value in changes.items()}
    return LlamaConfig.read(source, slices=3, cut=Cut(()))


def test_dimensions_are_read_from_metadata() -> None:
    assert read() == LlamaConfig(
        layers=2,
        width=32,
        ffn=20,
        heads=4,
        kv_heads=2,
        head=8,
        epsilon=1e-5,
        theta=10000.0,
        vocabulary=11,
        slices=3,
    )


def test_the_default_model_s_dimensions(smollm2: Source) -> None:
    config = LlamaConfig.read(smollm2, slices=4, cut=Cut((), context=9, stateful=True))
    assert (config.layers, config.width, config.ffn) == (30, 576, 1536)
    assert (config.heads, config.kv_heads, config.head) == (9, 3, 64)
    assert (config.theta, config.vocabulary) == (100000.0, 49152)
    assert config.epsilon == pytest.approx(1e-5)
    assert config.context == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "qwen2"}, "tiny.gguf: architecture 'qwen2', expected 'llama'."),
        (
            {"llama__attention__head_count": 0},
            "tiny.gguf: llama.attention.head_count is 0, no positive number.",
        ),
        (
            {"llama__attention__head_count_kv": [2, 4]},
            "tiny.gguf: llama.attention.head_count_kv is [2, 4], no positive number.",
        ),
        (
            {"llama__rope__freq_base": float("nan")},
            "tiny.gguf: llama.rope.freq_base is nan, no positive number.",
        ),
        (
            {"llama__attention__head_count_kv": 3},
            "tiny.gguf: 32 channels, 4 query heads and 3 key heads do not divide one another.",
        ),
        (
            {"llama__embedding_length": 33},
            "tiny.gguf: 33 channels, 4 query heads and 2 key heads do not divide one another.",
        ),
        (
            {"llama__rope__dimension_count": 4},
            "tiny.gguf: llama.rope.dimension_count is 4, and family 'llama' computes 8 only.",
        ),
        (
            {"llama__rope__scaling__type": "yarn"},
            "tiny.gguf: llama.rope.scaling.type is 'yarn', and family 'llama' computes 'none' "
            "only.",
        ),
    ],
)
def test_another_architecture_or_variant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as error:
        read(**changes)
    assert str(error.value) == message


def test_a_variant_s_key_with_the_value_that_is_computed() -> None:
    assert read(llama__rope__dimension_count=8, llama__rope__scaling__type="none") == read()
