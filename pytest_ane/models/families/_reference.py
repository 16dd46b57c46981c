"""What the families' float32 references share: norm, RoPE, attention, and runs over sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from pytest_ane.mlprogram.arrays import FloatArray

T = TypeVar("T")


def rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """Of the last axis, x / sqrt(mean(x^2) + eps) (Zhang and Sennrich, arXiv 1910.07467)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE of the first channels of `[heads, T, d]`, as many as the tables have."""
    rotated, rest = x[..., : cos.shape[1]], x[..., cos.shape[1] :]
    low, high = rotated.chunk(2, dim=-1)
    return torch.cat([rotated * cos + torch.cat([-high, low], dim=-1) * sin, rest], dim=-1)


def split_heads(x: Tensor, head: int) -> Tensor:
    """`[T, heads * d]` as `[heads, T, d]`."""
    return x.reshape(len(x), -1, head).transpose(0, 1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, divisor: float = 1.0, cap: float | None = None
) -> Tensor:
    """Attention with grouped queries: softmax(q k^T / divisor + mask) v as `[T, heads * d]`.

    `q [heads, T, d]`; `k` and `v [kv_heads, T, d]`; additive `mask [T, T]`; scores are softly
    capped before the mask is added.
    """
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = softly_capped(q @ k.transpose(1, 2) / divisor, cap)
    mixed = torch.softmax(scores + mask, dim=-1) @ v
    return mixed.transpose(0, 1).reshape(mixed.shape[1], -1)


def softly_capped(x: Tensor, cap: float | None) -> Tensor:
    """C tanh(x / c), between -c and c (Gemma 2, arXiv 2408.00118); `x` without a cap."""
    return x if cap is None else torch.tanh(x / cap) * cap


CLOSE = 8 * 2.0**-11
"""How near two values may be, by their products' Euclidean norm: see `close_choices`."""


def close_choices(normed: Tensor, projection: Tensor, top: int) -> Tensor:
    """Experts `[T, E]` of which fp16 cannot tell whether they are among the `top` ones.

    A logit is a sum of products of three fp16 numbers, each rounded by up to 2^-11 of itself and
    independently: its error has a deviation of at most 2^-11 of the products' Euclidean norm.
    `CLOSE` is eight times that, for the difference of two logits.
    `normed [T, C]` enters the router, `projection [E, C]`.
    """
    logits = normed @ projection.T
    noise = CLOSE * (normed.square() @ projection.T.square()).sqrt()
    if top >= logits.shape[-1]:
        return torch.zeros_like(logits, dtype=torch.bool)
    values = logits.sort(dim=-1, descending=True).values
    last, next_ = values[:, top - 1, None], values[:, top, None]
    return torch.where(logits >= last, logits - next_, last - logits) <= noise


def each(tell: Callable[[Tensor], T], sequences: Sequence[FloatArray]) -> list[T]:
    with torch.inference_mode():
        return [tell(torch.from_numpy(hidden)) for hidden in sequences]


def run_each(
    module: Callable[[Tensor], Tensor], sequences: Sequence[FloatArray]
) -> list[FloatArray]:
    """A module's outputs for sequences `[T, C]`, one after another."""
    return each(lambda x: module(x).numpy(), sequences)


def run_together(
    module: Callable[[Tensor], Tensor], sequences: Sequence[FloatArray]
) -> list[FloatArray]:
    """As `run_each`, all rows at once, for a module whose positions do not see one another."""
    with torch.inference_mode():
        inputs = [torch.from_numpy(hidden) for hidden in sequences]
        rows = module(torch.cat(inputs))
        return [y.numpy() for y in torch.split(rows, [len(x) for x in inputs])]
