"""Gemma 4 models of a few channels with random weights, held in memory in the published layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.gemma4 import FAMILY, Gemma4Model
from pytest_ane.models.families.gemma4._forms import Weights
from pytest_ane.models.sources import Source
from tests.models.families.llama import tiny as memory

ROOT = "model.language_model."


@dataclass
class MemorySource(memory.MemorySource):
    """With nested tables; `read` also says from which row on."""

    label: str = "tiny"

    @property
    def config(self) -> dict[str, Any]:
        return self.values

    def value(self, key: str) -> Any:
        found: Any = self.config
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                raise SourceError(f"{self.label}: config.json has no key {key!r}.")
            found = found[part]
        return found

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> npt.NDArray[Any]:
        self.read.append(f"{name}[{index[0]}]")
        assert self.tensors[name].shape[-1] == width
        return self.tensors[name].reshape(-1, width)[list(index)].astype(dtype)


def tiny_config(**changes: Any) -> dict[str, Any]:
    """`text_config` of two layers, the second one global."""
    return {
        "model_type": "gemma4_text",
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 0,
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 12,
        "moe_intermediate_size": 4,
        "num_experts": 16,
        "top_k_experts": 3,
        "num_attention_heads": 4,
        "head_dim": 4,
        "num_key_value_heads": 2,
        "global_head_dim": 8,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 5.0,
        "vocab_size": 21,
        "layer_types": ["sliding_attention", "full_attention"],
    } | changes


def tiny_source(seed: int = 0, **changes: Any) -> MemorySource:
    """Weights of a size that keeps activations near 1."""
    c = tiny_config(**changes)
    rng = np.random.default_rng(seed)
    tensors: dict[str, FloatArray] = {}

    def matrix(name: str, *shape: int) -> None:
        values = rng.standard_normal(shape) / shape[-1] ** 0.5
        tensors[ROOT + name] = values.astype(np.float32)

    def vector(name: str, length: int) -> None:
        tensors[ROOT + name] = rng.uniform(0.5, 1.5, length).astype(np.float32)

    width, experts, f = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    matrix("embed_tokens.weight", c["vocab_size"], width)
    vector("norm.weight", width)
    for i, kind in enumerate(c["layer_types"]):
        sliding = kind == "sliding_attention"
        shared = c["attention_k_eq_v"] and not sliding
        head = c["head_dim"] if sliding else c["global_head_dim"]
        kv_heads = c["num_global_key_value_heads" if shared else "num_key_value_heads"]
        at = f"layers.{i}."
        matrix(f"{at}self_attn.q_proj.weight", c["num_attention_heads"] * head, width)
        matrix(f"{at}self_attn.o_proj.weight", width, c["num_attention_heads"] * head)
        for name in "k" if shared else "kv":
            matrix(f"{at}self_attn.{name}_proj.weight", kv_heads * head, width)
        for name in ("gate", "up"):
            matrix(f"{at}mlp.{name}_proj.weight", c["intermediate_size"], width)
        matrix(f"{at}mlp.down_proj.weight", width, c["intermediate_size"])
        matrix(f"{at}experts.gate_up_proj", experts, 2 * f, width)
        matrix(f"{at}experts.down_proj", experts, width, f)
        matrix(f"{at}router.proj.weight", experts, width)
        tensors[f"{ROOT}{at}router.proj.weight"] *= 3 * width**0.5
        vector(f"{at}router.scale", width)
        vector(f"{at}router.per_expert_scale", experts)
        vector(f"{at}layer_scalar", 1)
        for name in ("q_norm", "k_norm"):
            vector(f"{at}self_attn.{name}.weight", head)
        for name in NORMS:
            vector(f"{at}{name}.weight", width)
    return MemorySource(tensors, {"text_config": c})


NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
)


def tiny_model(
    shards: Sequence[str] = (), *, context: int = 12, seed: int = 0, **changes: Any
) -> Gemma4Model:
    """A model of these dimensions cut into these shards, with states of `context` positions."""
    cut = Cut(tuple(shards), max_tokens=4, context=context)
    return FAMILY.open_model(tiny_source(seed, **changes), cut)


def tiny_weights(source: Source, dtype: npt.DTypeLike = np.float32) -> Weights:
    """A source's tensors by the family's names."""
    config, names = FAMILY.read(source, Cut(()))
    return Weights(source, config, names, dtype)


def hidden(length: int, width: int, seed: int = 0) -> FloatArray:
    """Hidden states `[T, C]` of RMS 1."""
    return np.random.default_rng(seed).standard_normal((length, width)).astype(np.float32)
