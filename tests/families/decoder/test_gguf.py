"""GGUF files: the keys of an architecture are honoured or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.families import Cut
from pytest_ane.families.decoder import DecoderConfig
from pytest_ane.families.layout import Rotary
from pytest_ane.families.llama import FAMILY
from tests.families.llama.tiny import tiny_source


def read(tensors: dict[str, Any] | None = None, **values: Any) -> DecoderConfig:
    source = tiny_source()
    source.values |= {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    source.tensors |= tensors or {}
    return FAMILY.read(source, Cut(()))[0]


PLAIN = Rotary.plain(4, 10_000.0)


def test_a_factor_without_a_kind_is_linear_as_llama_cpp_reads_it() -> None:
    slower = Rotary(tuple(f / 4 for f in PLAIN.frequencies))
    assert read(rope__scaling__factor=4.0).rotaries == (slower,)
    assert read(rope__scale_linear=4.0).rotaries == (slower,)
    assert read(rope__scaling__type="linear", rope__scaling__factor=4.0).rotaries == (slower,)


def test_the_kind_none_scales_nothing() -> None:
    assert read(rope__scaling__type="none", rope__scaling__factor=4.0).rotaries == (PLAIN,)


def test_factors_of_frequencies_are_a_tensor() -> None:
    factors = np.array([1, 8], np.float32)
    first, second = PLAIN.frequencies
    config = read({"rope_freqs.weight": factors})
    assert config.rotaries == (Rotary((first, second / 8)),)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"attention__sliding_window": 4096}, "llama.attention.sliding_window 4096, which family"),
        (
            {"attention__value_length": 2},
            "llama.attention.value_length is 2, and family",
        ),
        ({"expert_count": 8}, "its metadata has llama.expert_count 8, which family 'llama' does"),
        ({"attention__clamp_kqv": 3.0}, "llama.attention.clamp_kqv 3.0"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "original_context_length"),
        ({"rope__scaling__type": "magic"}, 'llama.rope.scaling.type "magic"; computed are'),
    ],
)
def test_what_would_be_another_model_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        read(**values)


def test_what_changes_nothing_is_no_reason_to_refuse() -> None:
    assert read(
        context_length=2048, rope__dimension_count=4, attention__value_length=4
    ).rotaries == (PLAIN,)
