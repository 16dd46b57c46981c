"""Names of tensors in a GGUF file, under which a published checkpoint or a seed is read too."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.arrays import Array
from pytest_ane.core.errors import SourceError
from pytest_ane.sources import Source, Tokenizer
from pytest_ane.sources.settings import check_variant

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"

KNOWN = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_norm|attn_[qkv]|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down))\.weight"
)


_EMBEDDING = "model.embed_tokens.weight"
_WHOLE = {
    EMBEDDING: _EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FROM_WHOLE = {published: name for name, published in _WHOLE.items()}
_FROM_BLOCK = {published: name for name, published in _IN_BLOCK.items()}
_KEYS = {
    "general.architecture": ("model_type",),
    "llama.block_count": ("num_hidden_layers",),
    "llama.embedding_length": ("hidden_size",),
    "llama.feed_forward_length": ("intermediate_size",),
    "llama.attention.head_count": ("num_attention_heads",),
    "llama.attention.head_count_kv": ("num_key_value_heads", "num_attention_heads"),
    "llama.attention.key_length": ("head_dim",),
    "llama.attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "llama.rope.freq_base": ("rope_theta", "rope_parameters.rope_theta"),
    "llama.vocab_size": ("vocab_size",),
}
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling.rope_type": ("default", None),
    "rope_scaling.type": ("default", None),
    "rope_parameters.rope_type": ("default", None),
}
"""What a GGUF file of this architecture cannot say otherwise."""


def is_checkpoint(source: Source) -> bool:
    """Whether tensors have the names of a published checkpoint; a seed has any."""
    return source.synthetic or _EMBEDDING in source.names


class CheckpointAsGGUF:
    """A source in the published layout; rows of queries and keys are as published, not permuted.

    Raises:
        SourceError: a variant that this family does not compute.
    """

    def __init__(self, source: Source) -> None:
        check_variant(source.label, "llama", source.value, _ONLY)
        self._source = source

    @property
    def label(self) -> str:
        """The checkpoint's label, for messages."""
        return self._source.label

    @property
    def synthetic(self) -> bool:
        """Whether the weights are made up."""
        return self._source.synthetic

    @property
    def names(self) -> Collection[str]:
        """All tensors; one that has no name in GGUF under its own."""
        names = [_in_gguf(name) for name in self._source.names]
        # Where the head is said to have weights of its own, the embedding must not stand for them.
        return names if self._tied or OUTPUT in names else [*names, OUTPUT]

    @property
    def _tied(self) -> bool:
        try:
            return self._source.value("tie_word_embeddings") is not False
        except SourceError:
            return True

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; `SourceError` where there is none we know."""
        return self._source.tokenizer

    def value(self, key: str) -> Any:
        """A value by its GGUF key; `SourceError` names the published one that is missing."""
        keys = _KEYS.get(key, (key,))
        for published in keys[:-1]:
            try:
                return self._source.value(published)
            except SourceError:
                continue
        # A seed stands for no particular architecture: it is of the family that reads it.
        if key == "general.architecture" and self.synthetic:
            return "llama"
        return self._source.value(keys[-1])

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor by its GGUF name."""
        return self._source.tensor(_published(name), shape, dtype)

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:
        """Rows of a matrix by its GGUF name."""
        return self._source.rows(_published(name), index, width, height, dtype)


def _published(name: str) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None:
        return _WHOLE[name]
    return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.weight"


def _in_gguf(name: str) -> str:
    """A tensor's name in GGUF; one that has none there keeps its own."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match and match[2] in _FROM_BLOCK:
        return f"blk.{match[1]}.{_FROM_BLOCK[match[2]]}.weight"
    return _FROM_WHOLE.get(name, name)
