"""Published checkpoints and seeds, read under GGUF's names: the same model as the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.sources import SeededSource, Source
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.models.families.llama.tiny import tiny_source
from tests.models.families.rotary import plain_rotary
from tests.models.sources.checkpoints import bf16, write_checkpoint

CUT = Cut(("L00", "L01", "head.0", "head.1"), max_tokens=8)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "vocab_size": 10,
}
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half and row i of its second become neighbours, as in GGUF."""
    rows = []
    for head in np.split(weight, heads):
        half = len(head) // 2
        rows += [head[j] for i in range(half) for j in (i, half + i)]
    return np.array(rows)


def published(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, index, part = stem.split(".")
    return f"model.layers.{index}.{PARTS[part]}.weight"


def pair(folder: Path, *, tied: bool = True, **changes: Any) -> tuple[DecoderModel, DecoderModel]:
    """A model from memory in GGUF's form, and from files as published."""
    memory = tiny_source(layers=2, tied=tied)
    for values in memory.tensors.values():
        values.view(np.uint32)[:] &= 0xFFFF0000
    tensors = [(published(name), bf16(value)) for name, value in memory.tensors.items()]
    write_checkpoint(folder, dict(tensors[::2]), dict(tensors[1::2]), config=CONFIG | changes)
    for name, value in memory.tensors.items():
        for part, heads in (("attn_q", 4), ("attn_k", 2)):
            if part in name:
                memory.tensors[name] = permuted(value, heads)
    return LLAMA.open_model(memory, CUT), LLAMA.open_model(SafetensorsSource(folder), CUT)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_is_the_model_that_gguf_holds(tmp_path: Path, tied: bool) -> None:
    gguf, checkpoint = pair(tmp_path, tied=tied)
    assert checkpoint.config == gguf.config
    hidden = gguf.embed([3, 1, 4])
    np.testing.assert_array_equal(checkpoint.embed([3, 1, 4]), hidden)
    for shard in CUT.shards:
        expected, found = (m.reference(shard)([hidden])[0] for m in (gguf, checkpoint))
        np.testing.assert_array_equal(found, expected)
        assert np.abs(expected).max() > 0.1


def test_newer_configurations_keep_theta_in_a_table(tmp_path: Path) -> None:
    changes = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
    del (config := dict(CONFIG))["rope_theta"]
    write_checkpoint(tmp_path, {"model.embed_tokens.weight": bf16(np.ones((10, 16)))},
                     config=config | changes)  # fmt: skip
    (read, _) = LLAMA.read(SafetensorsSource(tmp_path), Cut(()))
    assert read.rotaries == (plain_rotary(4, 500.0),)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "config.json has no rope_scaling.factor,"),
        (
            {"rope_scaling": {"type": "axial", "factor": 2.0}},
            'config.json has rope_scaling.type "axial"; computed are default, dynamic, linear, ',
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "finetuned": True}},
            "rope_scaling.finetuned True; that is not computed with its rope_scaling.rope_type",
        ),
        (
            {"rope_parameters": {"rope_theta": 500.0}},
            "theta 10000.0 and rope_parameters.rope_theta",
        ),
        ({"num_local_experts": 8}, "config.json has num_local_experts 8, which family 'llama'"),
        ({"partial_rotary_factor": 0.5}, "config.json has partial_rotary_factor 0.5, which"),
        ({"hidden_size": None}, "config.json has hidden_size null, which is no"),
        ({"hidden_size": 0}, "hidden_size is 0, no positive number"),
    ],
)
def test_variants_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        pair(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": None},
        {"sliding_window": None, "attention_bias": False, "num_experts": 0},
        {"rope_scaling": {"rope_type": "default", "factor": 1.0}},
        {"rope_scaling": {"type": "linear", "factor": 1.0}},
        {"quantization_config": None, "pretraining_tp": 1, "unheard_of": True},
    ],
)
def test_what_changes_nothing_is_no_reason_to_refuse(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    gguf, checkpoint = pair(tmp_path, **changes)
    assert checkpoint.config == gguf.config


def test_without_a_base_it_is_10_000(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    tensors = {"model.embed_tokens.weight": bf16(np.ones((10, 16)))}
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": bf16(np.ones(2))}
    write_checkpoint(tmp_path, tensors, buffer, config=config)
    read, _ = LLAMA.read(SafetensorsSource(tmp_path), Cut(()))
    assert read.rotaries == (plain_rotary(4, 10_000.0),)


def test_a_head_of_its_own_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"lacks the tensor 'lm_head\.weight' \(1 such in all\)"):
        pair(tmp_path, tie_word_embeddings=False)


def test_a_part_of_a_checkpoint_serves_the_shards_that_it_holds(tmp_path: Path) -> None:
    pair(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    LLAMA.open_model(SafetensorsSource(tmp_path), CUT)
    more = replace(CUT, shards=("L00", "L01", "L02", "head.0", "head.1"))
    lacking = r"lacks the tensor 'model\.layers\.2\.input_layernorm\.weight' \(9 such in all\)"
    with pytest.raises(SourceError, match=lacking):
        LLAMA.open_model(SafetensorsSource(tmp_path), more)


def test_a_seed_without_dimensions() -> None:
    with pytest.raises(SourceError, match=r"seeded 7: config\.json has no hidden_size"):
        LLAMA.open_model(SeededSource(7, LLAMA.spread), CUT)


def test_the_known_tensors(smollm2: Source) -> None:
    LLAMA.open_model(tiny_source(layers=2, tied=False), Cut(("L00",)))
    LLAMA.open_model(smollm2, Cut(("L00",)))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_norm.bias",
        "rope_factors_long.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.x.weight",
    ],
)
def test_an_unknown_tensor(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros(4, np.float32)
    source.tensors["z.weight"] = np.zeros(4, np.float32)
    with pytest.raises(SourceError) as error:
        LLAMA.open_model(source, Cut(("L00",)))
    assert f"not compute with its tensor {name!r} (2 such in all)" in str(error.value)
