"""GGUF files as transformers reads them: its tables of keys and names, and its changes of tensors.

transformers' own load expands a whole file, at minutes and gigabytes; here a layer's tensors are
expanded, by the `gguf` library. What its tables leave out is added by llama.cpp's names for it
(`gguf-py/gguf/constants.py`): scaled angles, heads of any size, windows, experts, Granite's
multipliers, and the families that it does not read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ane.models.reference._files import Tensors, lacks
from pytest_ane.models.sources import Source

_KINDS: Mapping[str, str] = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
}
"""transformers' names of architectures that llama.cpp calls otherwise."""
_KEYS: Mapping[str, str] = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""What transformers' tables leave out."""
_GEMMA4_KEYS: Mapping[str, str] = {
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "expert_used_count": "top_k_experts",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "attention.shared_kv_layers": "num_kv_shared_layers",
}
_ROPE: Mapping[str, str] = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scale_linear": "factor",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
_THETA = 10_000.0
"""RoPE's base where a file has none (`llama-model.cpp`)."""
_LARGEST_GEMMAS = (46, 62)
"""Layers of Gemma 2 and 3 27B, whose scores llama.cpp divides by an even share of the width."""
_TYPES = "token_types.weight"
_SLIDING = {True: "sliding_attention", False: "full_attention"}


def table_of(source: Source) -> dict[str, Any]:
    """A file's metadata as transformers' configuration has it."""
    from transformers.integrations.ggml import GGUF_CONFIG_DEFAULTS_MAPPING, GGUF_CONFIG_MAPPING

    name = source.value("general.architecture")
    told = {
        key.removeprefix(f"{name}."): source.value(key)
        for key in source.keys
        if key.startswith(f"{name}.")
    }
    kind = _KINDS.get(name, name)
    if name == "llama" and told.get("expert_count"):
        kind = "mixtral"
    known = GGUF_CONFIG_MAPPING.get(kind.removesuffix("_text"), GGUF_CONFIG_MAPPING["llama"])
    keys = {**known, **_KEYS, **(_GEMMA4_KEYS if name == "gemma4" else {})}
    table: dict[str, Any] = {
        new: told[key] for key, new in keys.items() if new and key in told and "rope" not in key
    }
    table |= GGUF_CONFIG_DEFAULTS_MAPPING.get(kind, {})
    table |= {"model_type": kind, "pad_token_id": None}
    table["tie_word_embeddings"] = "output.weight" not in source.names
    if "vocab_size" not in table:
        table["vocab_size"] = len(source.value("tokenizer.ggml.tokens"))
    if kind in ("mixtral", "granite"):
        table["num_local_experts"] = table.pop("num_experts", 0)
    biased = "blk.0.attn_q.bias" in source.names
    table |= {"attention_bias": biased, "qkv_bias": biased}
    table["mlp_bias"] = "blk.0.ffn_gate.bias" in source.names
    table["sliding_window"] = table.get("sliding_window") or None
    head = table.get("head_dim") or table["hidden_size"] // table["num_attention_heads"]
    table["rope_parameters"] = _rope(source, told, head)
    special = {"gemma2": _gemma, "gemma3": _gemma3, "gemma4": _gemma4, "bert": _bert}
    if name in special:
        special[name](table, told, source, head)
    return table


def _rope(source: Source, told: Mapping[str, Any], head: int) -> dict[str, Any]:
    rope = {new: told[key] for key, new in _ROPE.items() if told.get(key)}
    if rope.get("rope_type", "linear") == "linear":
        rope["rope_type"] = "linear" if "factor" in rope else "default"
    rope["rope_theta"] = told.get("rope.freq_base", _THETA)
    if (turned := told.get("rope.dimension_count", head)) != head:
        rope["partial_rotary_factor"] = turned / head
    for length in ("short", "long"):
        if (name := f"rope_factors_{length}.weight") in source.names:
            factors = source.tensor(name, source.shape(name))
            rope |= {"rope_type": "longrope", f"{length}_factor": factors.tolist()}
    if rope["rope_type"] == "longrope":
        rope.setdefault("attention_factor", 1.0)
    return rope


def _gemma(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    even = table["hidden_size"] / table["num_attention_heads"]
    largest = table["num_hidden_layers"] in _LARGEST_GEMMAS
    table["query_pre_attn_scalar"] = even if largest else head
    table.setdefault("sliding_window", 4096)
    if table["sliding_window"] is None:
        del table["sliding_window"]


def _gemma3(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    layers = table["num_hidden_layers"]
    pattern = told.get("attention.sliding_window_pattern", 6)
    if not isinstance(pattern, list):
        pattern = [bool((i + 1) % pattern) for i in range(layers)]
    windowed = table["sliding_window"] is not None
    _gemma(table, told, source, head)
    table["layer_types"] = [_SLIDING[bool(slides) and windowed] for slides in pattern]
    table["rope_parameters"] = _two_kinds(table["rope_parameters"], told)


def _gemma4(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    slides = [bool(each) for each in told["attention.sliding_window_pattern"]]
    heads = table["num_key_value_heads"]
    of = dict(zip(slides, heads if isinstance(heads, list) else [heads] * len(slides), strict=True))
    far = next((i for i, near in enumerate(slides) if not near), None)
    table |= {
        "layer_types": [_SLIDING[near] for near in slides],
        "num_key_value_heads": of.get(True, of.get(False)),
        "num_global_key_value_heads": of.get(False, of.get(True)),
        "attention_k_eq_v": far is not None and f"blk.{far}.attn_v.weight" not in source.names,
        "enable_moe_block": True,
        "final_logit_softcapping": table.get("final_logit_softcapping", 30.0),
    }
    rope = _two_kinds({"rope_theta": told.get("rope.freq_base", _THETA)}, told)
    # Over all of a global head, whose pairs the file's divisors turn less, or not at all.
    rope["full_attention"] |= {"rope_type": "proportional", "partial_rotary_factor": 1.0}
    table["rope_parameters"] = rope


def _two_kinds(far: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    near = {"rope_type": "default", "rope_theta": told.get("rope.freq_base_swa", _THETA)}
    return {"sliding_attention": near, "full_attention": {"rope_type": "default", **far}}


def _bert(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    # A DistilBERT, which has no types, is one whose types add nothing.
    table["type_vocab_size"] = source.shape(_TYPES)[0] if _TYPES in source.names else 1
    del table["rope_parameters"]


class GGUFTensors(Tensors):
    """A file's tensors by the parameters of transformers that they make up."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._architecture = source.value("general.architecture")
        self._names: dict[str, list[str]] = {}

    def meet(self, model: Any) -> None:
        from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

        if not self._names:
            self._process = _processor(self._architecture, model)
            # Without the model's parts, each of which it would look through again.
            names = SimpleNamespace(
                config=model.config.get_text_config(),
                state_dict=model.state_dict,
                named_children=tuple,
            )
            homes = get_gguf_hf_weights_map(names, self._process, self._architecture)
            homes |= _unlisted(model)
            self._homes = {name.removesuffix(".weight"): home for name, home in homes.items()}
            self._names = defaultdict(list)
            for name, home in self._homes.items():
                self._names[home].append(name)
        if (factors := "rope_freqs.weight") in self.source.names:
            divisors = torch.from_numpy(self.source.tensor(factors, self.source.shape(factors)))
            for name, buffer in model.named_buffers():
                far = "rotary_emb." in name and ".sliding" not in name
                if far and buffer.shape == divisors.shape:
                    buffer /= divisors

    def read(self, home: str, shape: tuple[int, ...]) -> Tensor:
        if home.endswith("token_type_embeddings.weight") and _TYPES not in self.source.names:
            return torch.zeros(shape)
        made: dict[str, Tensor] = {}
        for name in self._stored(home):
            given = self._process.process(
                self._read(name),
                name,
                tensor_key_mapping=self._homes,
                parsed_parameters={"tensors": made},
            )
            if given.name is not None:
                made[home] = torch.from_numpy(np.ascontiguousarray(given.weights))
        # Older converters leave axes of 1 out.
        return made[home].reshape(shape)

    def table(self, model: Any, table: Any) -> str:
        untied = table is not model.get_input_embeddings() and "output.weight" in self.source.names
        return "output.weight" if untied else "token_embd.weight"

    def bank(self, model: Any, home: str) -> str:
        (name,) = self._stored(home)
        return name

    def _stored(self, home: str) -> list[str]:
        known = {*self.source.names}
        names = [n if n.endswith((".bias", ".scale")) else f"{n}.weight" for n in self._names[home]]
        if not names or not {n if n in known else _fused(n)[0] for n in names} <= known:
            raise lacks(self.source, [home])
        return names

    def _read(self, name: str) -> Any:
        if name in self.source.names:
            return self.source.tensor(name, self.source.shape(name))
        whole, part = _fused(name)
        return np.split(self.source.tensor(whole, self.source.shape(whole)), 3)[part]


def _fused(name: str) -> tuple[str, int]:
    """The tensor of queries, keys and values that has one of them, and which third it is."""
    part = re.search(r"attn_([qkv])\.", name)
    return (name, 0) if part is None else (name.replace(part[0], "attn_qkv."), "qkv".index(part[1]))


def _unlisted(model: Any) -> dict[str, str]:
    """Of Gemma 4, whose factors the `gguf` library's table of names leaves out."""
    own = {
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "layer_scalar": "layer_output_scale",
    }
    return {
        re.sub(r"model\.layers\.(\d+)\..*", rf"blk.\1.{name}", home): home
        for home in model.state_dict()
        for part, name in own.items()
        if home.endswith(f".{part}")
    }


def _processor(architecture: str, model: Any) -> Any:
    """Transformers' changes of a file's tensors, of what llama.cpp's converter changes alike."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    pairs, experts = TENSOR_PROCESSORS["llama"], TENSOR_PROCESSORS["qwen2moe"]

    class Mixtral(experts):  # type: ignore[misc, valid-type]
        def process(self, weights: Any, name: str, **named: Any) -> Any:
            weights = pairs(self.config).process(weights, name).weights
            return super().process(weights, name, **named)

    of = {"smollm3": pairs, "granite": pairs, **TENSOR_PROCESSORS}
    config = model.config.get_text_config()
    kind = Mixtral if config.model_type == "mixtral" else of.get(architecture, TensorProcessor)
    return kind(config.to_dict())
