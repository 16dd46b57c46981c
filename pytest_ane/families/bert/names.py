"""What files call a BERT's tensors: published checkpoints and GGUF."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_ane.sources import Source
from pytest_ane.sources.settings import architecture_of, check_names

_TABLES = ("word", "position", "type")
_PARTS = {
    "word": ("embeddings.word_embeddings", "token_embd"),
    "position": ("embeddings.position_embeddings", "position_embd"),
    "type": ("embeddings.token_type_embeddings", "token_types"),
    "norm": ("embeddings.LayerNorm", "token_embd_norm"),
    "q": ("attention.self.query", "attn_q"),
    "k": ("attention.self.key", "attn_k"),
    "v": ("attention.self.value", "attn_v"),
    "qkv": ("", "attn_qkv"),
    "o": ("attention.output.dense", "attn_output"),
    "attention_norm": ("attention.output.LayerNorm", "attn_output_norm"),
    "up": ("intermediate.dense", "ffn_up"),
    "down": ("output.dense", "ffn_down"),
    "ffn_norm": ("output.LayerNorm", "layer_output_norm"),
}
"""In checkpoints and in GGUF, where three maps may be in one tensor."""
_UNUSED = r"embeddings\.position_ids|pooler\.dense\.(weight|bias)"
"""Not of the hidden states: transformers' `pooler_output`, and below the heads of pre-training."""
_PRETRAINING = r"cls\..*"


@dataclass(frozen=True)
class Names:
    """Names in one file.

    Attributes:
        root: what a published checkpoint's names begin with; None for GGUF.
        norm: the two kinds of a norm's tensors.
    """

    root: str | None
    norm: tuple[str, ...] = ("weight", "bias")

    def of(self, part: str, index: int | str | None = None) -> tuple[str, ...]:
        """A part's tensors: a table, or a weight and a bias; of a block, if there is an index."""
        is_gguf = self.root is None
        layer = "" if index is None else f"{'blk' if is_gguf else 'encoder.layer'}.{index}."
        kinds = self.norm if part.endswith("norm") else ("weight", "bias")
        name = f"{self.root or ''}{layer}{_PARTS[part][is_gguf]}"
        return tuple(f"{name}.{kind}" for kind in kinds[: 1 if part in _TABLES else 2])

    def check(self, source: Source) -> None:
        """`SourceError` for a tensor that would be left out."""
        known = [
            re.escape(name).replace("@", r"\d+")
            for part in _PARTS
            for name in self.of(part, None if part in (*_TABLES, "norm") else "@")
        ]
        known += [f"{re.escape(self.root)}({_UNUSED})"] if self.root is not None else []
        known += [_PRETRAINING] if self.root else []
        check_names(source.label, "bert", source.names, re.compile("|".join(known)))


def find_names(source: Source) -> Names:
    """As a source calls its tensors; older checkpoints have norms of `gamma` and `beta`."""
    if architecture_of(source.value)[0] == "general.architecture":
        return Names(None)
    root = "bert." if "bert.embeddings.word_embeddings.weight" in source.names else ""
    old = f"{root}embeddings.LayerNorm.gamma" in source.names
    return Names(root, ("gamma", "beta")) if old else Names(root)
