"""Which experts a router of transformers chooses, and where fp16 could choose others."""

from __future__ import annotations

import torch
from torch import Tensor

ALL = range(1 << 30)
"""The experts of a shard that has all of a layer's."""
CLOSE = 8 * 2.0**-11
"""How near two values may be, by their products' Euclidean norm: see `close_choices`."""


def chosen(index: Tensor, weights: Tensor) -> tuple[tuple[int, ...], ...]:
    """Experts `[T, K]` of each position that count, the largest weight first."""
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    rows = zip(index.gather(-1, order).tolist(), weights.tolist(), strict=True)
    return tuple(
        tuple(expert for expert, weight in zip(*row, strict=True) if weight) for row in rows
    )


def among(which: Tensor, own: range) -> Tensor:
    """Which of some experts are a shard's own."""
    return (which >= own.start) & (which < own.stop)


def rows_of(close: Tensor) -> tuple[int, ...]:
    """Positions where any of `[T, E]` is true."""
    rows: list[int] = close.any(dim=-1).nonzero()[:, 0].tolist()
    return tuple(rows)


def close_choices(entered: Tensor, projection: Tensor, top: int) -> Tensor:
    """Experts `[T, E]` of which fp16 cannot tell whether they are among the `top` ones.

    A logit is a sum of products of three fp16 numbers, each rounded by up to 2^-11 of itself and
    independently: its error has a deviation of at most 2^-11 of the products' Euclidean norm.
    `CLOSE` is eight times that, for the difference of two logits.

    Args:
        entered: what enters the projection, `[T, C]`.
        projection: `[E, C]`.
        top: as many as are chosen.
    """
    logits = entered @ projection.T
    noise = CLOSE * (entered.square() @ projection.T.square()).sqrt()
    if top >= logits.shape[-1]:
        return torch.zeros_like(logits, dtype=torch.bool)
    values = logits.sort(dim=-1, descending=True).values
    last, next_ = values[:, top - 1, None], values[:, top, None]
    return torch.where(logits >= last, logits - next_, last - logits) <= noise
