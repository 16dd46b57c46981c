"""RMSNorm in ANE form, returned in the dtype of its weights.

The converter computes inputs and divisions in float32 and promotes what meets them, large weights
included, before it makes all of it fp16 again: most of a conversion's time and half of its memory.
A cast to fp16 after the norm, and constants in fp16 instead of Python numbers, keep it from that;
they leave no op in the program.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.families.ane import TINY, settled


class AneUnit(nn.Module):
    """RMSNorm without a weight, which no fp16 input can overflow.

    The formula is that of `families.ane.ScaledRMSNorm`: with m = max|x|, x / sqrt(mean(x^2) + eps)
    = (x/m) / sqrt(mean((x/m)^2) + (sqrt(eps)/m)^2).
    """

    tiny: Tensor
    root_epsilon: Tensor

    def __init__(self, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("tiny", torch.tensor([TINY], dtype=dtype))
        self.register_buffer("root_epsilon", torch.tensor([epsilon**0.5], dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`x [N, C, T, 1]` over the root of its mean square along C."""
        largest = torch.maximum(x.abs().amax(dim=1, keepdim=True), self.tiny)
        scaled = x / largest
        square = (scaled * scaled).mean(dim=1, keepdim=True)
        epsilon = self.root_epsilon / largest
        return settled(scaled * torch.rsqrt(square + epsilon * epsilon), self.tiny.dtype)


class AneNorm(nn.Module):
    """RMSNorm of `[N, C, T, 1]` over C with a weight `[C]`."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.unit = AneUnit(epsilon, weight.dtype)
        self.weight = constant(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        normed: Tensor = self.unit(x) * self.weight
        return normed


def constant(values: Tensor) -> nn.Parameter:
    """Values of channels `[C]` as `[1, C, 1, 1]`."""
    return nn.Parameter(values.reshape(1, -1, 1, 1), requires_grad=False)
