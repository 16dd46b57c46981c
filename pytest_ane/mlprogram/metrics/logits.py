"""Statistics of two sets of logits, by position and summarised; all NaN-safe, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.metrics.tensors import cosine, is_cosine

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
        cosine: of the logits as they are; None, as what follows, if the evidence does not have it.
        margin: by how many logits the reference's likeliest token leads its second.
        nll: -log p of the text's next token in nats, of the shards; `reference_nll` of the
            reference. None where the text ends.
    """

    centred_cosine: float
    kl: float
    top1: bool
    rank: int
    cosine: float | None = None
    margin: float | None = None
    nll: float | None = None
    reference_nll: float | None = None

    def __post_init__(self) -> None:
        if wrong := [c for c in (self.centred_cosine, self.cosine or 0.0) if not is_cosine(c)]:
            raise ValueError(f"{wrong[0]} is no cosine")
        if self.kl < -_ROUNDING:
            raise ValueError(f"{self.kl} is no KL divergence, which is never negative")
        if self.rank < 0 or (self.top1 and self.rank > 0):
            raise ValueError(f"top-1 {self.top1} and rank {self.rank} contradict each other")
        if any((x or 0.0) < 0 for x in (self.margin, self.nll, self.reference_nll)):
            raise ValueError("a margin or a negative log-likelihood is negative")

    @property
    def defined(self) -> bool:
        """Whether it says anything: no logit is NaN or infinite, nor are all alike."""
        return math.isfinite(self.kl) and math.isfinite(self.centred_cosine)


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


def compare_logits(
    reference: FloatArray, actual: FloatArray, ids: Sequence[int] = ()
) -> tuple[Position, ...]:
    """Statistics of float32 logits `[T, V]` against a reference's, one entry per position.

    `ids` are the text's tokens, for negative log-likelihoods; none without them.
    """
    a, b = reference.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        centred = cosine(a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True))
        log_p, log_q = _log_softmax(a), _log_softmax(b)
    divergence, ranks, leads = _kl(log_p, log_q), _ranks(a, b), _leads(a)
    finite, plain = [bool(np.isfinite(row).all()) for row in b], cosine(a, b)
    own, expected = _nll(log_q, ids), _nll(log_p, ids)
    return tuple(
        Position(
            centred_cosine=float(centred[i]),
            kl=float(divergence[i]),
            top1=finite[i] and bool(ranks[i] == 0),
            rank=int(ranks[i]),
            cosine=round(float(plain[i]), 6),
            margin=round(float(leads[i]), 4),
            nll=own[i],
            reference_nll=expected[i],
        )
        for i in range(len(b))
    )


def likeliest(logits: FloatArray, count: int = 8) -> tuple[Likeliest, ...]:
    """The `count` likeliest tokens of every position of float32 logits `[T, V]`."""
    return tuple(_likeliest(row, count) for row in logits.astype(np.float64))


def kl(reference: DoubleArray, actual: DoubleArray) -> DoubleArray:
    """KL divergence by position, `[T]` in nats; NaN where a logit is NaN or infinitely large.

    sum p (log p - log q) over the vocabulary, p and q being the softmax of two sets of logits.
    """
    with np.errstate(invalid="ignore"):
        return _kl(_log_softmax(reference), _log_softmax(actual))


@dataclass(frozen=True)
class Quantiles:
    """Lowest value, 5th, 50th and 95th percentile (linear between values), highest."""

    min: float
    p5: float
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Quantiles of at least one value; all NaN where one of them is."""
        with np.errstate(invalid="ignore"):
            quantiles = np.percentile(np.asarray(values, np.float64), (0, 5, 50, 95, 100))
        return cls(*map(float, quantiles))


@dataclass(frozen=True)
class LogitSummary:
    """Statistics of at least one position.

    Attributes:
        top1: share of positions with the reference's likeliest token.
        kl: mean KL(reference || shards) in nats; `kls` its quantiles.
        cosine: None if the evidence does not have it.
        rank: the lowest place of the reference's likeliest token, 0 being best.
        perplexity: exp of the mean negative log-likelihood of the text's next tokens, of the
            shards; `reference_perplexity` of the reference. None where no position has one.
    """

    top1: float
    kl: float
    kls: Quantiles
    centred_cosine: Quantiles
    cosine: Quantiles | None
    rank: int
    perplexity: float | None
    reference_perplexity: float | None

    @classmethod
    def of(cls, positions: Sequence[Position]) -> LogitSummary:
        """Summarise positions. The caller must exclude position 0."""
        kls = [p.kl for p in positions]
        plain = _not_none(p.cosine for p in positions)
        return cls(
            top1=float(np.mean([p.top1 for p in positions])),
            kl=float(np.mean(kls)),
            kls=Quantiles.of(kls),
            centred_cosine=Quantiles.of([p.centred_cosine for p in positions]),
            cosine=Quantiles.of(plain) if plain else None,
            rank=max(p.rank for p in positions),
            perplexity=_perplexity(_not_none(p.nll for p in positions)),
            reference_perplexity=_perplexity(_not_none(p.reference_nll for p in positions)),
        )

    @property
    def perplexity_increase(self) -> float | None:
        """Of the shards over the reference, as a share: 0.02 is 2 % more."""
        if self.perplexity is None or self.reference_perplexity is None:
            return None
        # Both inf is no agreement.
        with np.errstate(invalid="ignore"):
            return float(np.float64(self.perplexity) / self.reference_perplexity - 1)


def perplexity_bound(vocabulary: int, tokens: int) -> float | None:
    """A perplexity that no trained model exceeds and no untrained one keeps.

    It is that of a model which knows how frequent tokens are and nothing of their context: exp(H)
    by Zipf's law, p(r) = 1 / (r (1 + 1/2 + ... + 1/V)) for the token of rank r (Zipf, Human
    Behavior and the Principle of Least Effort, 1949). For 19,979 words it gives 1,120, and 962 was
    measured (Jurafsky and Martin, Speech and Language Processing, 3rd ed., section 3.3). A model
    that guesses has V. To H come two standard errors of a mean over so many tokens.

    Returns:
        None where the bound would lie more than halfway, in nats, from exp(H) to V: so few tokens
        tell neither.
    """
    if vocabulary < 2 or not tokens:
        return None
    ranks = np.arange(1, vocabulary + 1, dtype=np.float64)
    losses = np.log(ranks * np.sum(1 / ranks))
    mean = float(np.sum(np.exp(-losses) * losses))
    deviation = math.sqrt(float(np.sum(np.exp(-losses) * (losses - mean) ** 2)))
    chance = 2 * deviation / math.sqrt(tokens)
    return None if chance > (math.log(vocabulary) - mean) / 2 else math.exp(mean + chance)


def _not_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _perplexity(losses: list[float]) -> float | None:
    if not losses:
        return None
    mean = float(np.mean(losses))
    return math.exp(mean) if not mean > 700 else math.inf


def _kl(log_p: DoubleArray, log_q: DoubleArray) -> DoubleArray:
    with np.errstate(invalid="ignore"):
        return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=1))


def _ranks(a: DoubleArray, b: DoubleArray) -> npt.NDArray[np.int64]:
    """Of a's likeliest token in b; a NaN compares false both ways, and must count as before it."""
    best = a.argmax(axis=1)[:, None]
    own = np.take_along_axis(b, best, axis=1)
    before = ~(b <= own) | ((b == own) & (np.arange(b.shape[1]) < best))
    return np.asarray(before.sum(axis=1))


def _leads(logits: DoubleArray) -> DoubleArray:
    if logits.shape[1] < 2:
        return np.full(len(logits), math.inf)
    ordered = np.partition(logits, (-2, -1), axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(ordered[:, -1] - ordered[:, -2])


def _nll(logs: DoubleArray, ids: Sequence[int]) -> list[float | None]:
    """-log p of each next token, to four digits; None after the last."""
    following = list(ids[1 : len(logs) + 1])
    values = -logs[np.arange(len(following)), following]
    # Rounding alone could take it below 0.
    losses: list[float | None] = [
        round(value, 4) if value > 0 or value != value else 0.0 for value in values.tolist()
    ]
    return losses + [None] * (len(logs) - len(following))


def _likeliest(row: DoubleArray, count: int) -> Likeliest:
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


def _log_softmax(x: DoubleArray) -> DoubleArray:
    shifted = x - x.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
