"""GGUF files: the keys of an architecture are honoured or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.families.decoder import DecoderConfig, DecoderModel
from pytest_ane.models.families.gemma4 import Gemma4Model
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources._gguf import GGUFSource
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.gguf_files import write_gguf_of
from tests.models.families.decoder.oracle import (
    CONTEXT,
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)
from tests.models.families.llama.tiny import tiny_source
from tests.models.families.rotary import plain_rotary


def read(tensors: dict[str, Any] | None = None, **values: Any) -> DecoderConfig:
    source = tiny_source()
    source.values |= {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    source.tensors |= tensors or {}
    return LLAMA.read(source, Cut(()))[0]


PLAIN = plain_rotary(4, 10_000.0)


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
        ({"attention__value_length": 2}, "llama.attention.value_length is 2, and family"),
        ({"expert_count": 8}, "its metadata has llama.expert_count 8, which family 'llama' does"),
        ({"attention__clamp_kqv": 3.0}, "llama.attention.clamp_kqv 3.0"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "original_context_length"),
        ({"rope__scaling__attn_factor": 1.2}, "llama.rope.scaling.attn_factor 1.2, which family"),
        ({"rope__scaling__finetuned": False}, "llama.rope.scaling.finetuned False, which"),
        ({"rope__scaling__yarn_log_multiplier": 0.1}, "llama.rope.scaling.yarn_log_multiplier"),
        ({"attention__causal": False}, "llama.attention.causal False, which"),
        ({"rope__freq_base_swa": 1e4}, "llama.rope.freq_base_swa 10000.0, which"),
        ({"rope__scaling__type": "magic"}, 'llama.rope.scaling.type "magic"; computed are'),
    ],
)
def test_what_would_be_another_model_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        read(**values)


def test_what_changes_nothing_is_no_reason_to_refuse() -> None:
    assert read(
        context_length=2048, rope__dimension_count=4, attention__value_length=4,
        attention__causal=True, rope__scaling__finetuned=True, rope__scaling__attn_factor=1.0,
        expert_count=0, expert_used_count=0, rope__scaling__type="linear",
    ).rotaries == (PLAIN,)  # fmt: skip


WRITTEN = (
    "llama", "llama-tied-mqa-biases", "llama-mha-head-dim", "llama-llama3", "llama-linear",
    "llama-yarn", "llama-dynamic", "mistral-no-window", "mixtral", "qwen2", "qwen3", "phi3-window",
    "phi3-longrope", "smollm3", "granite", "granite-biases-tied", "qwen2-moe",
)  # fmt: skip
"""Of the cases those all of whose settings a GGUF file can hold."""
_GEMMA4 = next(case for case in CASES if case.name == "gemma4")
FILES = (
    *(case for case in CASES if case.name in WRITTEN),
    Case("qwen3-moe-normalized", "qwen3_moe", "Qwen3Moe", {
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 8,
        "norm_topk_prob": True,
    }),
    Case("gemma2", "gemma2", "Gemma2", {
        "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
    }),
    Case("gemma3", "gemma3", "Gemma3Text", {
        "head_dim": 16, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 16,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }),
    Case("gemma4-capped", "gemma4", "Gemma4Text", {
        **_GEMMA4.changes, "final_logit_softcapping": 3.0,
    }, prepare=_GEMMA4.prepare),
    Case("gemma4-values", "gemma4", "Gemma4Text", {
        **_GEMMA4.changes, "final_logit_softcapping": 30.0, "attention_k_eq_v": False,
        "num_global_key_value_heads": 2, "num_experts": 8, "top_k_experts": 1,
    }, prepare=_GEMMA4.prepare),
    Case("gemma4-untied-angles", "gemma4", "Gemma4Text", {
        **_GEMMA4.changes, "final_logit_softcapping": 30.0, "tie_word_embeddings": False,
        "num_global_key_value_heads": 4, "global_head_dim": 20, "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "top_k_experts": 16, "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 900.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }, prepare=_GEMMA4.prepare),
    Case("phi3", "phi3", "Phi3", {"sliding_window": None, "original_max_position_embeddings": 64}),
    Case("qwen3-yarn-tied", "qwen3", "Qwen3", {
        "head_dim": 20, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    }),
)  # fmt: skip


def opened(case: Case, file: Path) -> DecoderModel:
    cut = Cut(case.shards, max_tokens=CONTEXT, context=CONTEXT)
    model = get_family(case.family).open_model(GGUFSource(file), cut)
    assert isinstance(model, DecoderModel)
    if isinstance(model, Gemma4Model):
        model.dtype = np.float32
    return model


@pytest.mark.drawn
@pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
def test_a_file_as_llama_cpp_converts_it_is_transformers_model(case: Case, tmp_path: Path) -> None:
    right = case.save(tmp_path)
    model = opened(case, write_gguf_of(tmp_path, tmp_path / "model.gguf"))
    for length in (1, 50):
        ids = prompt(length)
        logits = expected(right, ids)
        for actual in (referred(model, ids), Converted(model)(ids)):
            assert difference(actual, logits) <= 1e-4
            np.testing.assert_array_equal(actual.argmax(axis=1), logits.argmax(axis=1))


class Metadata:
    """A source of metadata and of names alone."""

    label, synthetic = "m.gguf", False

    def __init__(self, architecture: str, names: tuple[str, ...] = (), **values: Any) -> None:
        told = {
            "block_count": 3, "embedding_length": 32, "feed_forward_length": 48,
            "attention.head_count": 4, "attention.key_length": 16,
            "attention.layer_norm_rms_epsilon": 1e-6,
        }  # fmt: skip
        told |= {key.replace("__", "."): value for key, value in values.items()}
        self.values = {f"{architecture}.{key}": value for key, value in told.items()}
        self.values |= {
            "general.architecture": architecture, "tokenizer.ggml.tokens": [""] * 61,
        }  # fmt: skip
        self.keys, self.names = tuple(self.values), names

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise SourceError(key)
        return self.values[key]


def configured(family: str, architecture: str, **values: Any) -> DecoderConfig:
    source: Any = Metadata(architecture, **values)
    return get_family(family).read(source, Cut(()))[0]


def test_a_vocabulary_is_the_tokens_where_no_key_tells() -> None:
    assert configured("qwen3", "qwen3").vocabulary == 61
    assert configured("qwen3", "qwen3", vocab_size=60).vocabulary == 60


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_gemma_are_scaled_as_llama_cpp_does(family: str, layers: int) -> None:
    """By the head's channels, and of the largest models by the width's share, 32 / 4."""
    assert configured(family, family).scale == 16**-0.5
    assert configured(family, family, block_count=layers).scale == 8**-0.5


def test_windows_of_gemma() -> None:
    def windows(family: str, **values: Any) -> list[int | None]:
        return [layer.window for layer in configured(family, family, **values).layers]

    assert windows("gemma2") == [4096, None, 4096]
    assert windows("gemma3") == [None, None, None]
    assert windows("gemma3", attention__sliding_window=5, block_count=7) == [5] * 5 + [None, 5]
    given = {"attention__sliding_window": 5, "attention__sliding_window_pattern": 2}
    assert windows("gemma3", **given) == [5, None, 5]
    given["attention__sliding_window_pattern"] = [False, True, True]
    assert windows("gemma3", **given) == [None, 5, 5]


def test_the_near_layers_of_gemma_are_not_scaled() -> None:
    config = configured(
        "gemma3", "gemma3", rope__freq_base=1e6, rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    )  # fmt: skip
    far, near = config.rotaries
    slow = plain_rotary(16, 1e6)
    assert far.frequencies == tuple(f / 8 for f in slow.frequencies)
    assert near == plain_rotary(16, 10_000.0)


def test_granite_4_without_recurrent_layers_is_granite() -> None:
    """Its converter is that of hybrid models, whose keys it writes all the same."""
    plain = configured("granite", "granite", attention__head_count_kv=2)
    assert plain == configured(
        "granite", "granite", attention__head_count_kv=[2, 2, 2], expert_count=0,
        expert_used_count=0, expert_shared_feed_forward_length=48, ssm__conv_kernel=4,
        ssm__inner_size=64, rope__scaling__finetuned=True,
    )  # fmt: skip
    with pytest.raises(SourceError, match=r"granite\.attention\.head_count_kv is \[2, 0, 2\]"):
        configured("granite", "granite", attention__head_count_kv=[2, 0, 2])
    with pytest.raises(SourceError, match=r"its tensor 'blk\.1\.ssm_in\.weight'"):
        configured("granite", "granite", names=("blk.1.ssm_in.weight",))


def test_longrope_without_its_tensor() -> None:
    with pytest.raises(SourceError, match=r"has rope_factors_short\.weight None; expected a list"):
        configured("phi3", "phi3", rope__scaling__type="longrope", context_length=64)


def test_a_window_of_0_is_none() -> None:
    assert configured("phi3", "phi3", attention__sliding_window=0).layers[0].window is None


def test_no_base_is_10_000_in_every_file() -> None:
    for family, architecture in (("smollm3", "smollm3"), ("mistral", "llama")):
        assert configured(family, architecture).rotaries == (plain_rotary(16, 10_000.0),)


@pytest.mark.parametrize(
    ("family", "architecture", "values", "said"),
    [
        ("mixtral", "llama", {}, "its metadata has no llama.expert_count"),
        ("mixtral", "llama", {"expert_count": 8}, "has no llama.expert_used_count"),
        ("mistral", "llama", {"expert_count": 8, "expert_used_count": 2}, "llama.expert_count 8"),
        (
            "qwen3_moe",
            "qwen3moe",
            {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 8,
             "expert_weights_norm": False},
            "qwen3moe.expert_weights_norm False, which family",
        ),
        (
            "mixtral",
            "llama",
            {"expert_count": 8, "expert_used_count": 2, "expert_weights_scale": 2.5},
            "llama.expert_weights_scale 2.5, which family",
        ),
        ("qwen3", "qwen3moe", {}, "architecture 'qwen3moe', expected 'qwen3'"),
        (
            "qwen3",
            "qwen3",
            {"attention__layer_norm_rms_epsilon": None},
            "has no qwen3.attention.layer_norm_rms_epsilon",
        ),
        (
            "gemma3",
            "gemma3",
            {"attention__sliding_window_pattern": [True]},
            "gemma3.attention.sliding_window_pattern is .* for each of 3 layers",
        ),
    ],
)  # fmt: skip
def test_another_model_is_refused_by_the_keys_of_its_file(
    family: str, architecture: str, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        configured(family, architecture, **values)


def test_experts_of_old_files_are_refused() -> None:
    """Before they were stacked, in early 2024, each was a tensor of its own."""
    names = ("blk.0.ffn_gate.0.weight",)
    with pytest.raises(SourceError, match=r"does not compute with its tensor 'blk\.0\.ffn_gate\.0"):
        configured("mixtral", "llama", names=names, expert_count=2, expert_used_count=1)


def test_a_bias_of_some_blocks_alone_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"does not compute with its tensor 'blk\.1\.attn_q\.bias"
    ):
        read({"blk.1.attn_q.bias": np.zeros(16, np.float32)})
