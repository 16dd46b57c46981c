"""The llama family with an RMSNorm that squares before it scales, as a model is first written.

In fp16 a square overflows above |x| = 255.9, so the norm of such a position is zero. Gaussian
probes never get there; hidden states of SmolLM2 do, from block 2 on. A manifest beside this file
takes it as `family = "naive_norm"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ane.models.families import Conversion, Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.sources import Source

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pytest_ane.models.families._ane import ScaledRMSNorm

__all__ = ["VERSION", "layout", "open_model", "spread", "starts_whole", "wiring"]
VERSION = "1"
layout, wiring, starts_whole, spread = (
    LLAMA.layout,
    LLAMA.wiring,
    LLAMA.starts_whole,
    LLAMA.spread,
)


def open_model(source: Source, cut: Cut) -> DecoderModel:
    """The same weights and references; only what is converted differs."""
    model = LLAMA.open_model(source, cut)
    return NaiveLlama(model.source, model.config, model.names, cut, LLAMA.exact(source))


class NaiveLlama(DecoderModel):
    """A Llama model whose packages square in fp16."""

    def conversion(self, shard: str) -> Conversion:
        """As the family has it, every norm replaced."""
        from pytest_ane.models.families._ane import ScaledRMSNorm

        made = super().conversion(shard)
        for name, norm in made.module.named_children():
            if isinstance(norm, ScaledRMSNorm):
                setattr(made.module, name, naive(norm))
        return made


def naive(norm: ScaledRMSNorm) -> nn.Module:
    """RMSNorm as it is written, x / sqrt(mean(x^2) + eps), in the dtype of x."""
    import torch

    assert norm.weight is not None
    weight: Tensor = norm.weight

    class NaiveRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight
            self.epsilon = norm.root_epsilon**2

        def forward(self, x: Tensor) -> Tensor:
            square = (x * x).mean(dim=1, keepdim=True)
            normed: Tensor = (x * torch.rsqrt(square + self.epsilon) * self.weight).float()
            return normed.to(x.dtype)

    return NaiveRMSNorm()
