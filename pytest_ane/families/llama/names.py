"""Names of a Llama model's tensors in a GGUF file."""

from __future__ import annotations

import re

from pytest_ane.errors import SourceError
from pytest_ane.sources import Source

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"

_KNOWN = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_norm|attn_[qkv]|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down))\.weight"
)


def check_names(source: Source) -> None:
    """Refuse a file with a tensor that this family would leave out, such as a bias.

    Raises:
        SourceError: names the first such tensor.
    """
    unknown = sorted(name for name in source.names if not _KNOWN.fullmatch(name))
    if unknown:
        raise SourceError(
            f"{source.label}: family 'llama' does not compute with its tensor {unknown[0]!r} "
            f"({len(unknown)} such in all), so its reference would be another model."
        )
