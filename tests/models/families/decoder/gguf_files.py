"""GGUF files of transformers' checkpoints, with the keys and tensors of llama.cpp's converter.

Names are those of `gguf.get_tensor_name_map`, which the converter uses as well. Keys and changes of
tensors are described by the classes of llama.cpp's `convert_hf_to_gguf.py` (`conversion/` in later
versions): `TextModel.set_gguf_parameters` for all, `LlamaModel` (Llama, Mistral, Mixtral, and below
it Granite and SmolLM3), `Qwen2Model`, `Qwen2MoeModel`, `Gemma2Model`, `Gemma3Model`,
`Phi3MiniModel`, and `Gemma4Model`, whose every key was held against what llama.cpp prints of a
converted Gemma-4-26B-A4B.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from pytest_ane.mlprogram.arrays import FloatArray

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
}
PERMUTED = ("llama", "smollm3", "granite")
"""Whose queries and keys turn in adjacent pairs: `LlamaModel.undo_permute`."""
Config = Mapping[str, Any]


def write_gguf_of(folder: Path, file: Path) -> Path:
    """A checkpoint in float32 as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in metadata(architecture, config).items():
        name = f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, (str, bool)):
            {str: writer.add_string, bool: writer.add_bool}[type(value)](name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tokenizer_model("gemma4" if architecture == "gemma4" else "gpt2")
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    for name, values in tensors(architecture, config, load_file(folder / "model.safetensors")):
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def metadata(architecture: str, config: Config) -> dict[str, Any]:
    """Keys behind the architecture's name."""
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    share = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "rope.freq_base": float(rope["rope_theta"]),
        **_scaling(rope),
    }
    keys |= globals().get(f"_{architecture}", lambda *_: {})(config, rope, share)
    return {key: value for key, value in keys.items() if value is not None}


def _scaling(rope: Config) -> dict[str, Any]:
    kind, trained = rope["rope_type"], rope.get("original_max_position_embeddings")
    if kind not in ("linear", "yarn"):
        return {}
    keys = {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = trained
        keys |= {f"rope.scaling.yarn_{k}": rope.get(k) for k in ("beta_fast", "beta_slow")}
    return keys


def _llama(config: Config, rope: Config, share: int) -> dict[str, Any]:
    return {"vocab_size": config["vocab_size"], "rope.dimension_count": share}


_smollm3 = _llama


def _granite(config: Config, rope: Config, share: int) -> dict[str, Any]:
    return {
        **_llama(config, rope, config["hidden_size"] // config["num_attention_heads"]),
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def _qwen3moe(config: Config, rope: Config, share: int) -> dict[str, Any]:
    return {"expert_feed_forward_length": config["moe_intermediate_size"]}


def _qwen2moe(config: Config, rope: Config, share: int) -> dict[str, Any]:
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    }


def _gemma2(config: Config, rope: Config, share: int) -> dict[str, Any]:
    return {
        "rope.freq_base": None,
        "attn_logit_softcapping": float(config["attn_logit_softcapping"]),
        "final_logit_softcapping": float(config["final_logit_softcapping"]),
        "attention.sliding_window": config["sliding_window"],
    }


def _gemma3(config: Config, rope: Config, share: int) -> dict[str, Any]:
    near = config["rope_parameters"]["sliding_attention"]["rope_theta"]
    return {
        "rope.freq_base_swa": float(near),
        "attention.sliding_window": config["sliding_window"],
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }


def _gemma4(config: Config, rope: Config, share: int) -> dict[str, Any]:
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    far = _global_heads(config)
    return {
        **_gemma3(config, rope, share),
        "attention.head_count_kv": [
            config["num_key_value_heads"] if near else far["num_key_value_heads"]
            for near in sliding
        ],
        "attention.key_length": far["head_dim"],
        "attention.value_length": far["head_dim"],
        "attention.key_length_swa": share,
        "attention.value_length_swa": share,
        "attention.sliding_window_pattern": sliding,
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "rope.dimension_count": far["head_dim"],
        "rope.dimension_count_swa": share,
    }


def _global_heads(config: Config) -> dict[str, int]:
    """Of Gemma 4, which transformers 5 saves by layer in place of keys of their own."""
    usual = {key: config[key] for key in ("head_dim", "num_key_value_heads")}
    far: dict[str, int] = config["per_layer_config"][str(config["num_hidden_layers"] - 1)]
    return usual | far


def _phi3(config: Config, rope: Config, share: int) -> dict[str, Any]:
    trained, most = _trained(config, rope), config["max_position_embeddings"]
    keys = {
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.scaling.original_context_length": trained,
        "rope.dimension_count": int(rope.get("partial_rotary_factor", 1.0) * share),
        "attention.sliding_window": config["sliding_window"] or 0,
    }
    if rope["rope_type"] == "longrope":
        grown = math.log(most / trained) / math.log(trained) if most > trained else 0
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + grown)
    return keys


def _trained(config: Config, rope: Config) -> int:
    key = "original_max_position_embeddings"
    trained: int = rope.get(key) or config[key]
    return trained


def tensors(
    architecture: str, config: Config, stored: Mapping[str, FloatArray]
) -> Iterator[tuple[str, FloatArray]]:
    """Names and values."""
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], layers
    )
    experts: dict[str, dict[int, FloatArray]] = defaultdict(dict)
    for name, values in stored.items():
        if architecture in ("gemma2", "gemma3"):
            if name == "lm_head.weight":
                continue
            values = values + 1 if name.endswith("norm.weight") else values
        if architecture in PERMUTED:
            values = _permuted(name, values, config)
        if expert := re.fullmatch(r"(.+)\.experts\.(\d+)\.(.+)", name):
            before = expert[1].replace("block_sparse_moe", "feed_forward").removeprefix("model.")
            whole = before if "feed_forward" in before else expert[1]
            experts[f"{whole}.experts.{expert[3]}"][int(expert[2])] = values
            continue
        if name.endswith("1.mlp.shared_expert_gate.weight"):
            values = values[0]  # Older converters left axes of 1 out.
        if architecture == "gemma4":
            yield _of_gemma4(names, name), values
            continue
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), values
    for name, each in experts.items():
        stacked = np.stack([each[number] for number in sorted(each)])
        yield names.get_name(name, try_suffixes=(".weight",)), stacked
    yield from _rope_tensors(config)


def _of_gemma4(names: gguf.TensorNameMap, name: str) -> str:
    """`Gemma4Model.modify_tensors`, and what its `filter_tensors` appends."""
    scales = {"router.scale": "ffn_gate_inp", "router.per_expert_scale": "ffn_down_exps"}
    if scale := re.fullmatch(r"model\.layers\.(\d+)\.(router\.\w*scale)", name):
        return f"blk.{scale[1]}.{scales[scale[2]]}.scale"
    name = name if name.endswith(".weight") else f"{name}.weight"
    found: str = names.get_name(name, try_suffixes=(".weight",))
    return found


def _permuted(name: str, values: FloatArray, config: Config) -> FloatArray:
    """`LlamaModel.permute`: rows of a head's halves become neighbours."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = next((n for part, n in heads.items() if f".{part}." in name), None)
    if count is None:
        return values
    parts = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
    return parts.swapaxes(1, 2).reshape(values.shape)


def _rope_tensors(config: Config) -> Iterator[tuple[str, FloatArray]]:
    rope = config["rope_parameters"]
    if config["model_type"] == "gemma4_text":
        yield "rope_freqs.weight", _proportional(config)
    if rope.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            yield f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32)
    if rope.get("rope_type") != "llama3":
        return
    share = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    trained, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, share, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / share)
        smooth = (trained / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1 if smooth > 1 else factor if smooth < 0 else between)
    yield "rope_freqs.weight", np.array(factors, np.float32)


def _proportional(config: Config) -> FloatArray:
    """`Gemma4Model.generate_extra_tensors`: pairs that do not turn are divided by 1e30."""
    share = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    head = _global_heads(config)["head_dim"]
    turning = int(head * share / 2)
    return np.array([1.0] * turning + [1e30] * (head // 2 - turning), np.float32)
