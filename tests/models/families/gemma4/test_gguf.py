"""GGUF files of Gemma 4: the published model's keys and tensors, and what is refused by its name.

The logits of files as llama.cpp's converter writes them are in `decoder/test_gguf.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.manifest import parse
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.decoder import DecoderConfig
from pytest_ane.models.families.gemma4 import FAMILY
from pytest_ane.models.sources._gguf import GGUFSource
from pytest_ane.tools._init_model import scaffold
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.gguf_files import write_gguf_of
from tests.models.families.gemma4.tiny import MemorySource

LAYERS = 30
SLIDING = [i % 6 != 5 for i in range(LAYERS)]
PUBLISHED: dict[str, Any] = {
    "block_count": LAYERS,
    "context_length": 262_144,
    "embedding_length": 2816,
    "feed_forward_length": 2112,
    "attention.head_count": 16,
    "attention.head_count_kv": [8 if near else 2 for near in SLIDING],
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "expert_count": 128,
    "expert_used_count": 8,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "final_logit_softcapping": 30.0,
    "attention.sliding_window": 1024,
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "attention.sliding_window_pattern": SLIDING,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
    "expert_feed_forward_length": 704,
    "rope.dimension_count": 512,
    "rope.dimension_count_swa": 256,
}
"""All keys of the architecture in a file of Gemma-4-26B-A4B, as llama.cpp prints them."""
PARTS = (
    "attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_output.weight",
    "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight", "ffn_norm.weight",
    "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "post_ffw_norm.weight",
    "ffn_gate_inp.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight",
    "post_ffw_norm_1.weight", "post_ffw_norm_2.weight", "ffn_gate_up_exps.weight",
    "ffn_down_exps.weight", "ffn_down_exps.scale", "layer_output_scale.weight",
)  # fmt: skip
FACTORS = np.array([1.0] * 64 + [1e30] * 192, np.float32)


class File(MemorySource):
    """The published file's metadata, and of its tensors the names and RoPE's divisors."""

    def __init__(self, *others: str, without: str = "", **changes: Any) -> None:
        names = [f"blk.{i}.{part}" for i in range(LAYERS) for part in PARTS]
        names += [f"blk.{i}.attn_v.weight" for i in range(LAYERS) if SLIDING[i]]
        names += ["token_embd.weight", "output_norm.weight", *others]
        tensors = dict.fromkeys(names, np.zeros(0, np.float32)) | {"rope_freqs.weight": FACTORS}
        keys = PUBLISHED | {key.replace("__", "."): value for key, value in changes.items()}
        values = {f"gemma4.{key}": value for key, value in keys.items() if value is not None}
        values |= {"general.architecture": "gemma4", "tokenizer.ggml.tokens": [""] * 262_144}
        tensors.pop(without, None)
        super().__init__(tensors, values, label="m.gguf")

    def value(self, key: str) -> Any:
        if key not in self.config:
            raise SourceError(key)
        return self.config[key]


def read(source: MemorySource) -> DecoderConfig:
    config, _ = FAMILY.read(source, Cut((), stateful=True))
    return config


def test_the_published_model() -> None:
    """The same as of its `config.json`; pairs that do not turn do so by nothing that shows."""
    file = File()
    assert len(file.names) == 658  # As many as llama.cpp counts.
    config, published = read(file), read(MemorySource({}, {}, "seeded", synthetic=True))
    assert replace(config, rotaries=()) == replace(published, rotaries=())
    for angles, expected in zip(config.rotaries, published.rotaries, strict=True):
        np.testing.assert_allclose(angles.frequencies, expected.frequencies, rtol=1e-12, atol=1e-29)


def test_layers_are_what_the_file_says() -> None:
    """The last one too, and one number of key heads may stand for all."""
    pattern = [i % 2 for i in range(LAYERS)]
    names = [f"blk.{i}.attn_v.weight" for i in range(LAYERS)]
    config = read(
        File(*names, attention__sliding_window_pattern=pattern, attention__head_count_kv=4)
    )
    assert [layer.window for layer in config.layers[-2:]] == [None, 1024]
    assert [config.heads_of(i) for i in (0, 1)] == [(512, 4), (256, 4)]
    assert not any(layer.shared for layer in config.layers)


def test_no_cap_is_llama_cpp_s() -> None:
    assert read(File(final_logit_softcapping=None)).logit_cap == 30.0
    assert read(File(final_logit_softcapping=20.0)).logit_cap == 20.0


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("embedding_length_per_layer_input", 256, "embedding_length_per_layer_input 256, which"),
        ("attention__shared_kv_layers", 18, r"gemma4\.attention\.shared_kv_layers 18, which"),
        ("expert_count", None, r"its metadata has no gemma4\.expert_count"),
        ("expert_count", 0, r"gemma4\.expert_count is 0"),
        ("expert_used_count", None, r"has no gemma4\.expert_used_count"),
        ("expert_gating_func", 2, r"gemma4\.expert_gating_func 2, which"),
        ("expert_weights_scale", 2.5, r"gemma4\.expert_weights_scale 2\.5, which"),
        ("rope__freq_base_swa", None, r"has no gemma4\.rope\.freq_base_swa"),
        ("rope__dimension_count", 128, r"gemma4\.rope\.dimension_count is 128, .* 512 only"),
        ("rope__dimension_count_swa", 64, r"gemma4\.rope\.dimension_count_swa is 64, .* 256 only"),
        ("rope__scaling__factor", 8.0, r"gemma4\.rope\.scaling\.factor 8\.0, which"),
        ("rope__scaling__type", "yarn", r"gemma4\.rope\.scaling\.type 'yarn', which"),
        ("attention__key_length_swa", None, r"has no gemma4\.attention\.key_length_swa"),
        ("attention__value_length_swa", 128, r"value_length_swa is 128, .* 256 only"),
        ("attention__value_length", 256, r"attention\.value_length is 256, .* 512 only"),
        ("attention__sliding_window", None, r"has no gemma4\.attention\.sliding_window"),
        ("attention__sliding_window_pattern", None, r"has no .*sliding_window_pattern"),
        ("attention__sliding_window_pattern", 6, r"sliding_window_pattern is 6; expected one of"),
        ("attention__head_count_kv", [8, 2], r"head_count_kv has 2 numbers, not one for each of"),
        ("attention__head_count_kv", [8] * 29 + [0], r"head_count_kv is 0, no positive number"),
        ("attention__head_count_kv", [8] * 29 + [2], r"head_count_kv \[8, 8.* which family"),
        ("feed_forward_length", [2112] * 29 + [4224], r"feed_forward_length is \[2112"),
        ("attention__clamp_kqv", 3.0, r"gemma4\.attention\.clamp_kqv 3\.0, which"),
    ],
)
def test_another_model_is_refused_by_the_file_s_key(key: str, value: Any, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        read(File(**{key: value}))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate_exps.weight",  # Of files whose experts came quantized.
        "blk.0.attn_qkv.weight",
        "blk.0.inp_gate.weight",
        "blk.5.attn_v.bias",
        "per_layer_token_embd.weight",
    ],
)
def test_a_tensor_that_would_be_left_out(name: str) -> None:
    with pytest.raises(SourceError, match=f"does not compute with its tensor '{name}'"):
        read(File(name))


def test_divisors_of_frequencies_are_needed() -> None:
    with pytest.raises(SourceError, match=r"m\.gguf: lacks the tensor 'rope_freqs\.weight', by wh"):
        read(File(without="rope_freqs.weight"))
    broken = File()
    broken.tensors["rope_freqs.weight"] = FACTORS * 0
    with pytest.raises(SourceError, match=r"rope_freqs\.weight is 0\.0, no positive number"):
        read(broken)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    case = next(case for case in CASES if case.name == "gemma4")
    case.save(tmp_path)
    return write_gguf_of(tmp_path, tmp_path / "tiny.gguf")


def test_init_finds_the_family(tiny: Path, tmp_path: Path) -> None:
    found = scaffold(str(tiny), tmp_path / "shards.toml", tmp_path / "cache")
    (model,) = parse(found.text, tmp_path / "shards.toml").models
    assert (model.name, model.family) == ("tiny", "gemma4")
    assert 'shards = "L{00-01}.attn, L{00-01}.p{0-7}, head.0"' in found.text
    # The tiny file has tokens alone, which split no text.
    assert "no metadata key 'tokenizer.ggml." in found.text
    assert all(prompt.ids for prompt in model.prompts)


def test_experts_are_read_one_by_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's are gigabytes."""
    asked: list[str] = []
    whole = GGUFSource.tensor

    def tensor(self: GGUFSource, name: str, *args: Any) -> Any:
        asked.append(name)
        return whole(self, name, *args)

    monkeypatch.setattr(GGUFSource, "tensor", tensor)
    model = FAMILY.open_model(GGUFSource(tiny), Cut(("L00.p3",), 8, 32))
    model.conversion("L00.p3")
    assert "blk.0.ffn_gate_inp.weight" in asked
    assert not any("_exps.weight" in name for name in asked)
