"""Statistics of two sets of logits, position by position; all NaN-safe, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_ane.fidelity.metrics import cosine
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class Position:
    """One position of one prompt.

    Attributes:
        centred_cosine: of logits minus their mean, which softmax ignores; NaN if undefined.
        kl: KL(reference || shards) in nats; NaN if undefined.
        top1: whether both name the same likeliest token; False if any logit is not finite.
        rank: rank of the reference's likeliest token among the shards' logits, 0 being best; of
            equal logits the lower token id comes first, as in greedy decoding.
    """

    centred_cosine: float
    kl: float
    top1: bool
    rank: int


def compare(reference: FloatArray, actual: FloatArray) -> tuple[Position, ...]:
    """Statistics of `[T, V]` against `[T, V]`, one entry per position."""
    a, b = reference.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        cosines = cosine(a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True))
    divergence = kl(a, b)
    best = a.argmax(axis=1)[:, None]
    own = np.take_along_axis(b, best, axis=1)
    # A NaN compares false both ways, so it must count as ranked before, not after.
    before = ~(b <= own) | ((b == own) & (np.arange(b.shape[1]) < best))
    ranks = before.sum(axis=1)
    return tuple(
        Position(float(c), float(d), bool(f.all() and r == 0), int(r))
        for c, d, f, r in zip(cosines, divergence, np.isfinite(b), ranks, strict=True)
    )


def kl(
    reference: npt.NDArray[np.float64], actual: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """KL divergence by position, `[T]` in nats; NaN where a logit is NaN or infinitely large.

    sum p (log p - log q) over the vocabulary, p and q being the softmax of two sets of logits.
    """
    with np.errstate(invalid="ignore"):
        log_p, log_q = _log_softmax(reference), _log_softmax(actual)
        divergence: npt.NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return divergence


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
