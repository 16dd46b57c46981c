"""What ANE forms share: `[1, C, T, 1]` tensors, norms that fp16 cannot overflow, 1x1 convolutions.

The layout follows Apple's "Deploying Transformers on the Apple Neural Engine" (2022): channels
first, the sequence on a spatial axis, `Conv2d` for every linear map.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.mlprogram import fp16


class ScaledRMSNorm(nn.Module):
    """RMSNorm over one axis that no fp16 input can overflow.

    With m = max|x|: x / sqrt(mean(x^2) + eps) = (x/m) / sqrt(mean((x/m)^2) + (sqrt(eps)/m)^2).
    Every |x/m| is at most 1, so no square overflows and their mean is at least 1/C. Squaring
    first overflows fp16 above |x| = 255.9; real activations reach five digits.
    """

    def __init__(self, weight: Tensor | None, epsilon: float, axis: int = 1) -> None:
        super().__init__()
        shape = [-1 if i == axis else 1 for i in range(4)]
        self.weight = None
        if weight is not None:
            self.weight = nn.Parameter(weight.reshape(shape), requires_grad=False)
        self.root_epsilon, self.axis = epsilon**0.5, axis

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `[1, C, T, 1]` over C, or `[KV, G, d, T]` over its own axis."""
        if self.weight is None:
            return cast_to(scaled_to_unit(x, self.root_epsilon, self.axis), x.dtype)
        return cast_to(scaled_to_unit(x, self.root_epsilon, self.axis) * self.weight, x.dtype)


class ScaledLayerNorm(nn.Module):
    """LayerNorm over the channels that no fp16 input can overflow.

    The mean is taken of x / max|x|, of which no sum exceeds C; what is left is normed as by
    `ScaledRMSNorm`. There the root of epsilon is at least fp16's smallest normal number, so that
    equal channels give the bias, and not 0 / 0.
    """

    def __init__(self, weight: Tensor, bias: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.bias = constant(weight), constant(bias)
        self.root_epsilon = epsilon**0.5

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(dim=1, keepdim=True).clamp(min=fp16.MIN_NORMAL)
        scaled = x / largest
        centred = scaled - scaled.mean(dim=1, keepdim=True)
        root_epsilon = over(self.root_epsilon, largest).clamp(min=fp16.MIN_NORMAL)
        normed = scaled_to_unit(centred, root_epsilon)
        return cast_to(normed * self.weight + self.bias, x.dtype)


class AneHead(nn.Module):
    """Final norm and one vocabulary slice: `x [1, C, T, 1]` to logits `y [1, V / slices, T, 1]`."""

    def __init__(
        self, norm: Tensor, projection: Tensor, epsilon: float, cap: float | None = None
    ) -> None:
        super().__init__()
        self.norm = ScaledRMSNorm(norm, epsilon)
        self.head = pointwise(projection)
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        # Soft caps: C tanh(x / c), between -c and c (Gemma 2, arXiv 2408.00118).
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


class Chosen(nn.Module):
    """Whether each of E experts is among the `top` of the largest logits, `[1, E, T, 1]`.

    Without top-k and gather, which would leave the ANE (rules R009, R012): expert e is chosen if
    fewer than `top` others come before it, those with a larger logit, and those with an equal one
    and a lower index. With s = 1 for j > e and -1 for j < e their number is
    e + sum_j s [s (l_j - l_e) > 0], for the second kind is counted by its complement.
    """

    order: Tensor
    limit: Tensor
    zero: Tensor

    def __init__(self, experts: int, top: int, dtype: torch.dtype) -> None:
        super().__init__()
        index = torch.arange(experts)
        order = torch.sign(index[:, None] - index)[:, :, None, None]
        self.register_buffer("order", order.to(dtype))
        self.register_buffer("zero", torch.zeros(1, dtype=dtype))
        self.register_buffer("limit", (top - index)[None, :, None, None].to(dtype))

    def forward(self, logits: Tensor) -> Tensor:
        ahead = (logits.transpose(0, 1) - logits) * self.order > self.zero
        before = torch.where(ahead, self.order, self.zero).sum(dim=0, keepdim=True)
        return before < self.limit


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE along axis 2 of `[KV, G, d, T]`, of as many channels as the tables have."""
    channels = cos.shape[2]
    if channels < x.shape[2]:
        return torch.cat([rotate(x[:, :, :channels], cos, sin), x[:, :, channels:]], dim=2)
    low, high = x.chunk(2, dim=2)
    return x * cos + torch.cat([-high, low], dim=2) * sin


def cast_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in a dtype, as the converter sees it too.

    It goes on in float32 wherever a scalar or a state has entered, and takes the weights of the
    convolutions after it along, unless a cast is traced. torch traces none to the same dtype, hence
    the way through float32.
    """
    return x.float().to(dtype)


def scaled_to_unit(x: Tensor, root_epsilon: float | Tensor, dim: int = 1) -> Tensor:
    """`x` over the root of its mean square along `dim`, epsilon under the root."""
    largest = x.abs().amax(dim=dim, keepdim=True).clamp(min=fp16.MIN_NORMAL)
    scaled = x / largest
    square = (scaled * scaled).mean(dim=dim, keepdim=True)
    epsilon = over(root_epsilon, largest)
    return scaled * torch.rsqrt(square + epsilon * epsilon)


def over(x: float | Tensor, y: Tensor) -> Tensor:
    """`x / y`, elementwise.

    A number over a tensor would become MIL's `inverse`, which adds 1e-4 to `y`: 5 % of what Gemma 3
    adds to its first position came from that.
    """
    if isinstance(x, Tensor):
        return x / y
    return torch.full((1,) * y.ndim, x, dtype=y.dtype) / y


def constant(values: Tensor) -> nn.Parameter:
    """Values of channels `[C]` as `[1, C, 1, 1]`."""
    return nn.Parameter(values.reshape(1, -1, 1, 1), requires_grad=False)


def pointwise(weight: Tensor, bias: Tensor | None = None) -> nn.Conv2d:
    """A linear map `[out, in]` as a 1x1 convolution that shares the weight's memory."""
    rows, columns = weight.shape
    return convolution(weight.reshape(rows, columns, 1, 1), bias)


def convolution(weight: Tensor, bias: Tensor | None = None, groups: int = 1) -> nn.Conv2d:
    """A convolution of `weight [out, in / groups, h, w]`, whose memory it shares."""
    rows, columns, height, width = weight.shape
    # On the meta device nothing is drawn and thrown away; the shapes are all it is made for.
    conv = nn.Conv2d(
        columns * groups, rows, (height, width), groups=groups, bias=bias is not None, device="meta"
    )
    conv.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias, requires_grad=False)
    return conv
