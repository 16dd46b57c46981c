"""Names of a Gemma 4 checkpoint's text tensors, and how synthetic ones are distributed."""

from __future__ import annotations

import re

from pytest_ane.core.errors import SourceError
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import check_names

_ROOTS = ("model.language_model.", "language_model.model.", "model.")
"""The published checkpoint's first; then what other savers and a text-only model write."""

_KNOWN = (
    r"layers\.\d+\.(layer_scalar"
    r"|(input|post_attention|pre_feedforward|post_feedforward)_layernorm\.weight"
    r"|(pre_feedforward_layernorm_2|post_feedforward_layernorm_[12])\.weight"
    r"|self_attn\.([qkvo]_proj|[qk]_norm)\.weight|mlp\.(gate|up|down)_proj\.weight"
    r"|router\.(proj\.weight|scale|per_expert_scale)|experts\.(gate_up|down)_proj)"
)


def root(source: Source) -> str:
    """What the names of the text model's tensors begin with.

    Raises:
        SourceError: the source has no embedding by any known name, or a text tensor that this
            family would leave out.
    """
    if source.synthetic:
        return _ROOTS[0]
    names = source.names
    prefix = next((r for r in _ROOTS if f"{r}embed_tokens.weight" in names), None)
    if prefix is None:
        raise SourceError(
            f"{source.label}: no tensor {_ROOTS[0]}embed_tokens.weight, so this is no Gemma 4 "
            "checkpoint in the published layout."
        )
    layers = re.compile(rf"(?!{re.escape(prefix)}layers\.).*|{re.escape(prefix)}({_KNOWN})")
    check_names(source.label, "gemma4", names, layers)
    return prefix


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """Distributions under which synthetic activations keep realistic magnitudes.

    Matrices keep the variance of what enters, and 3 % of their values lie at 5 sigma. The norms
    before each residual sum have mean 0.1, so that a block adds about a tenth of the stream.
    Queries and keys have norms d^(-1/4), so that scores have a variance near 1. Router logits have
    a standard deviation near 1.5.
    """
    width = shape[-1] if shape else 1
    if name.endswith("layer_scalar"):
        return Spread(std=0.0, mean=1.0)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return Spread(std=0.1 * width**-0.25, mean=width**-0.25)
    if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
        return Spread(std=0.01, mean=0.1)
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "scale")):
        return Spread(std=0.1, mean=1.0)
    if name.endswith("router.proj.weight"):
        return Spread(std=1.5)
    if name.endswith("embed_tokens.weight"):
        return Spread(std=width**-0.5)
    return Spread.of(width**-0.5, outliers=0.03)
