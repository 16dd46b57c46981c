"""Names of a Llama model's tensors in a GGUF file."""

from __future__ import annotations

import re

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"

KNOWN = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_norm|attn_[qkv]|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down))\.weight"
)
