"""Statistics of two sets of logits, position by position; all NaN-safe, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_ane.fidelity.metrics import cosine, is_cosine
from pytest_ane.sources import FloatArray

_ROUNDING = 1e-6


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

    def __post_init__(self) -> None:
        if not is_cosine(self.centred_cosine):
            raise ValueError(f"{self.centred_cosine} is no cosine")
        if self.kl < -_ROUNDING:
            raise ValueError(f"{self.kl} is no KL divergence, which is never negative")
        if self.rank < 0 or (self.top1 and self.rank > 0):
            raise ValueError(f"top-1 {self.top1} and rank {self.rank} contradict each other")


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens of one position, for people and for later comparisons.

    Attributes:
        tokens: ids, likeliest first, the lower id first of equals; none if a logit is not finite.
        logprobs: natural logarithms of their probabilities, to four digits.
        tail: the same of all other tokens together; -inf if none are left, NaN if not finite.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tail: float

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens have {len(self.logprobs)} probabilities")
        if not all(value <= 0 for value in self.logprobs) or self.tail > 0:
            raise ValueError("the logarithm of a probability is above 0")


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


def likeliest(logits: FloatArray, count: int = 8) -> tuple[Likeliest, ...]:
    """The `count` likeliest tokens of every position of logits `[T, V]`."""
    wide = logits.astype(np.float64)
    return tuple(_likeliest(row, count) for row in wide)


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


def _likeliest(row: npt.NDArray[np.float64], count: int) -> Likeliest:
    if not np.isfinite(row).all():
        return Likeliest((), (), math.nan)
    logs = _log_softmax(row[None])[0]
    order = np.argsort(-row, kind="stable")
    best, rest = order[:count], order[count:]
    tail = float(np.exp(logs[rest]).sum())
    return Likeliest(
        tuple(best.tolist()),
        tuple(_rounded(value) for value in logs[best].tolist()),
        _rounded(math.log(tail)) if tail else -math.inf,
    )


def _rounded(log: float) -> float:
    """To four digits, and never above 0 by rounding."""
    return min(round(log, 4), 0.0)


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
