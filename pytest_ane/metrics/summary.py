"""Statistics of many positions in a few numbers; NaN anywhere is NaN in the result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ane.metrics.logits import Position


@dataclass(frozen=True)
class Spread:
    """Lowest, 5th, 50th and 95th percentile (linear between values), highest."""

    min: float
    p5: float
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; all NaN where one of them is."""
        with np.errstate(invalid="ignore"):
            found = np.percentile(np.asarray(values, np.float64), (0, 5, 50, 95, 100))
        return cls(*map(float, found))


@dataclass(frozen=True)
class Summary:
    """Statistics of at least one position.

    Attributes:
        top1: share of positions with the reference's likeliest token.
        kl: mean KL(reference || shards) in nats; `kls` its spread.
        cosine: None where evidence has it not.
        rank: the lowest place of the reference's likeliest token, 0 being best.
        perplexity: exp of the mean negative log-likelihood of the text's next tokens, of the
            shards; `reference_perplexity` of the reference. None where no position has one.
    """

    top1: float
    kl: float
    kls: Spread
    centred_cosine: Spread
    cosine: Spread | None
    rank: int
    perplexity: float | None
    reference_perplexity: float | None

    @classmethod
    def of(cls, positions: Sequence[Position]) -> Summary:
        """Of these positions; whoever calls leaves out position 0."""
        kls = [p.kl for p in positions]
        plain = _known(p.cosine for p in positions)
        return cls(
            top1=float(np.mean([p.top1 for p in positions])),
            kl=float(np.mean(kls)),
            kls=Spread.of(kls),
            centred_cosine=Spread.of([p.centred_cosine for p in positions]),
            cosine=Spread.of(plain) if plain else None,
            rank=max(p.rank for p in positions),
            perplexity=_perplexity(_known(p.nll for p in positions)),
            reference_perplexity=_perplexity(_known(p.reference_nll for p in positions)),
        )

    @property
    def perplexity_increase(self) -> float | None:
        """Of the shards over the reference, as a share: 0.02 is 2 % more."""
        if self.perplexity is None or self.reference_perplexity is None:
            return None
        # Both inf is no agreement.
        with np.errstate(invalid="ignore"):
            return float(np.float64(self.perplexity) / self.reference_perplexity - 1)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _perplexity(losses: list[float]) -> float | None:
    if not losses:
        return None
    mean = float(np.mean(losses))
    return math.exp(mean) if not mean > 700 else math.inf
