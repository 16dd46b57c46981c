"""Dimensions from metadata."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.decoder import DecoderConfig, Layer
from pytest_ane.models.families.layout import Rotary
from pytest_ane.models.families.llama import FAMILY
from pytest_ane.models.sources import Source
from tests.models.families.llama.tiny import tiny_source


def read(**changes: Any) -> DecoderConfig:
    """The configuration of a tiny model with some of its metadata changed."""
    source = tiny_source(layers=2, heads=4, kv_heads=2, head=8, ffn=20, vocabulary=11)
    source.values |= {key.replace("__", "."): value for key, value in changes.items()}
    return FAMILY.read(source, Cut(()), slices=3)[0]


def test_dimensions_are_read_from_metadata() -> None:
    assert read() == DecoderConfig(
        family="llama",
        layers=(Layer(), Layer()),
        width=32,
        ffn=20,
        heads=4,
        kv_heads=2,
        head=8,
        epsilon=1e-5,
        scale=8**-0.5,
        rotaries=(Rotary.plain(8, 10000.0),),
        vocabulary=11,
        slices=3,
    )


def test_the_default_model_s_dimensions(smollm2: Source) -> None:
    config = FAMILY.read(smollm2, Cut((), context=9, stateful=True), slices=4)[0]
    assert (len(config.layers), config.width, config.ffn) == (30, 576, 1536)
    assert (config.heads, config.kv_heads, config.head) == (9, 3, 64)
    assert (config.rotaries, config.vocabulary) == ((Rotary.plain(64, 100000.0),), 49152)
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
            "tiny.gguf: 4 query heads, 3 key heads and 8 channels of a head do not divide one "
            "another.",
        ),
        (
            {"llama__embedding_length": 33},
            "tiny.gguf: its metadata has no llama.attention.key_length.",
        ),
        (
            {"llama__rope__dimension_count": 4},
            "tiny.gguf: its metadata has llama.rope.dimension_count 4, which family 'llama' does "
            "not compute, so its reference would be another model.",
        ),
        (
            {"llama__rope__scaling__type": "yarn"},
            "tiny.gguf: its metadata has no llama.rope.scaling.original_context_length, which "
            "its llama.rope.scaling.type needs.",
        ),
    ],
)
def test_another_architecture_or_variant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as error:
        read(**changes)
    assert str(error.value) == message


def test_a_variant_s_key_with_the_value_that_is_computed() -> None:
    assert read(llama__rope__dimension_count=8, llama__rope__scaling__type="none") == read()
