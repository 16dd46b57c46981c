"""Names of a ZAYA1 model's tensors, as its first release and the lab's shards have them."""

from __future__ import annotations

import re

from pytest_ane.families.refusals import check_names as check_known
from pytest_ane.sources import Source

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.final_norm.weight"
OUTPUT = "lm_head.weight"

_LAYER = (
    r"input_norm\.weight"
    r"|res_scale\.(hidden_states|residual)_(scale|bias)"
    r"|self_attn\.qkv\.(linear_q|linear_k|val_proj1|val_proj2)\.weight"
    r"|self_attn\.qkv\.(conv_qk\.[01]\.(weight|bias)|temp)"
    r"|self_attn\.o_proj\.weight"
    r"|zaya_block\.router\.(down_proj|router_mlp\.[02])\.(weight|bias)"
    r"|zaya_block\.router\.(rmsnorm_eda\.weight|router_mlp\.4\.weight|balancing_biases)"
    r"|zaya_block\.experts\.local_experts\.\d+\.linear_fc[12]\.weight"
)

_LEFT_OUT = r"zaya_block\.router\.router_states_scale"
"""Carries the router's state from one mixture to the next, which separate shards do not."""

_KNOWN = re.compile(
    rf"model\.(embed_tokens|final_norm)\.weight|lm_head\.weight"
    rf"|model\.res_scale\.\w+|model\.layers\.\d+\.({_LAYER}|{_LEFT_OUT})"
)


def prefix(index: int) -> str:
    """What a layer's names begin with."""
    return f"model.layers.{index}."


def check_names(source: Source) -> None:
    """Refuse weights with a tensor that this family would leave out unsaid.

    Raises:
        SourceError: names the first such tensor.
    """
    check_known(
        source.label,
        "zaya",
        source.names,
        _KNOWN,
        "; it reads the names of the first release, which Zyphra keeps as ZAYA1-8B-legacy.",
    )
