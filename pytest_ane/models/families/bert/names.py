"""What files call a BERT's tensors: published checkpoints and GGUF."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_ane.models.sources import Source
from pytest_ane.models.sources.settings import architecture_of, check_names

_TABLES = ("word", "position", "type")
_PARTS = {
    "word": ("embeddings.word_embeddings", "token_embd"),
    "position": ("embeddings.position_embeddings", "position_embd"),
    "type": ("embeddings.token_type_embeddings", "token_types"),
    "norm": ("embeddings.LayerNorm", "token_embd_norm"),
    "q": ("encoder.layer.{}.attention.self.query", "blk.{}.attn_q"),
    "k": ("encoder.layer.{}.attention.self.key", "blk.{}.attn_k"),
    "v": ("encoder.layer.{}.attention.self.value", "blk.{}.attn_v"),
    "qkv": ("encoder.layer.{}.", "blk.{}.attn_qkv"),
    "o": ("encoder.layer.{}.attention.output.dense", "blk.{}.attn_output"),
    "attention_norm": ("encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"),
    "up": ("encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"),
    "down": ("encoder.layer.{}.output.dense", "blk.{}.ffn_down"),
    "ffn_norm": ("encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"),
}
"""In checkpoints, and in GGUF, where alone three maps may be in one tensor."""
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

    def of(self, part: str, index: int | str = "") -> tuple[str, ...]:
        """A part's tensors, a block's by its index: a table, or a weight and a bias."""
        kinds = self.norm if part.endswith("norm") else ("weight", "bias")
        name = f"{self.root or ''}{_PARTS[part][self.root is None].format(index)}"
        return tuple(f"{name}.{kind}" for kind in kinds[: 1 if part in _TABLES else 2])

    def check(self, source: Source) -> None:
        """`SourceError` for a tensor that would be left out."""
        known = [re.escape(name) for part in _PARTS for name in self.of(part, "@")]
        known += [f"{re.escape(self.root)}({_UNUSED})"] if self.root is not None else []
        known += [_PRETRAINING] if self.root else []
        pattern = "|".join(known).replace("@", r"\d+")
        check_names(source.label, "bert", source.names, re.compile(pattern))


def find_names(source: Source) -> Names:
    """As a source calls its tensors; older checkpoints have norms of `gamma` and `beta`."""
    if architecture_of(source.value)[0] == "general.architecture":
        return Names(None)
    root = "bert." if "bert.embeddings.word_embeddings.weight" in source.names else ""
    old = f"{root}embeddings.LayerNorm.gamma" in source.names
    return Names(root, ("gamma", "beta")) if old else Names(root)
