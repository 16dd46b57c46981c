"""What files call a decoder's tensors: published checkpoints and GGUF."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pytest_ane.families.decoder.config import DecoderConfig
from pytest_ane.sources import Source
from pytest_ane.sources.settings import check_names

Parts = Mapping[str, str]

PUBLISHED: Parts = MappingProxyType(
    {
        "embedding": "embed_tokens",
        "norm": "norm",
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
)
"""Names of transformers' modules, which most families share."""
GGUF: Parts = MappingProxyType(
    {
        "embedding": "token_embd",
        "norm": "output_norm",
        "head": "output",
        "attention_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "attention_post_norm": "post_attention_norm",
        "ffn_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "ffn_post_norm": "post_ffw_norm",
    }
)
"""Names of llama.cpp, the same for all architectures (`gguf-py/gguf/constants.py`)."""
ATTENTION = ("q", "k", "v", "o")
LINEAR = (*ATTENTION, "gate", "up", "down")
_ROOTS = ("model.", "model.language_model.", "language_model.model.", "")
_BESIDE = r"(model\.)?(vision_tower|vision_model|multi_modal_projector|embed_vision)\..*"
_HARMLESS = r".*rotary_emb\.inv_freq|rope_freqs\.weight"


@dataclass(frozen=True)
class Names:
    """Names in one file.

    Attributes:
        parts: of tensors, without what goes before and after.
        root: what a published checkpoint's names begin with; None for GGUF.
        fused: parts whose rows are stored in one tensor, in this order.
        norm_offset: what a norm's stored weights lack: 1 where x (1 + w) is meant.
        paired: whether rows of queries and keys are in adjacent pairs.
    """

    parts: Parts
    root: str | None = None
    fused: Sequence[Sequence[str]] = ()
    norm_offset: float = 0.0
    paired: bool = False

    def whole(self, part: str) -> str:
        """A tensor outside of the blocks: `embedding`, `norm` or `head`."""
        if self.root is None:
            return f"{self.parts[part]}.weight"
        if part == "head":
            return f"{'language_model.' if self.root.startswith('language') else ''}lm_head.weight"
        return f"{self.root}{self.parts[part]}.weight"

    def block(self, index: int, part: str, kind: str = "weight") -> str:
        """A tensor of a block."""
        before = f"blk.{index}." if self.root is None else f"{self.root}layers.{index}."
        return f"{before}{self.parts[part]}.{kind}"

    def expert(self, index: int, number: int, part: str) -> str:
        """A tensor of one of a mixture's experts."""
        return self.block(index, f"expert_{part}").replace("{}", str(number))

    def check(self, source: Source, family: str, config: DecoderConfig) -> None:
        """`SourceError` for a tensor that would be left out."""
        optional = (
            (("q_norm", "k_norm"), config.head_norms),
            (("attention_post_norm", "ffn_post_norm"), config.post_norms),
        )
        parts = ["attention_norm", "ffn_norm", *LINEAR]
        parts += [part for group, used in optional if used for part in group]
        known = {self.whole(part) for part in ("embedding", "norm", "head")}
        blocks = {self.block(0, part) for part in parts}
        blocks |= {self.block(0, part, "bias") for part in config.biases}
        if config.mixture is not None:
            blocks |= {self.block(0, "router")}
            blocks |= {self.expert(0, 0, part) for part in ("gate", "up", "down")}
        patterns = [*map(re.escape, known), _HARMLESS]
        patterns += [re.escape(name).replace(r"\.0\.", r"\.\d+\.") for name in blocks]
        if self.root not in (None, "model.", ""):
            patterns.append(_BESIDE)
        check_names(source.label, family, source.names, re.compile("|".join(patterns)))


def find_root(source: Source) -> str:
    """What a published checkpoint's names begin with; that of most where none is found."""
    stem = f"{PUBLISHED['embedding']}.weight"
    return next((root for root in _ROOTS if f"{root}{stem}" in source.names), _ROOTS[0])
