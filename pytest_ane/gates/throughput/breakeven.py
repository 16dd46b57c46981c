"""When speculative decoding pays: pure functions of what its calls cost and yield.

A verifier call of width w takes the last token and w - 1 drafts, and yields 1 to w tokens: the
drafts up to the first that is wrong, and one token of its own. With t1 the seconds of a plain step
and tv those of a call, it pays where it yields more than E = tv / t1 tokens: no guess about drafts
is in that. The expected yield under independent acceptance, each draft being right with probability
a given that those before it are, is 1 + a + ... + a^(w-1) = (1 - a^w) / (1 - a) (Leviathan, Kalman
and Matias, arXiv 2211.17192, equation 1). No call yields more than w, so that the best speed-up is
w t1 / tv, and where that is below 1 no acceptance is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class BreakEven:
    """A verifier against plain steps.

    Attributes:
        t1: seconds of a plain step.
        tv: seconds of a call.
        width: its positions.

    Raises:
        ValueError: a time is not above 0, or the width is below 2.
    """

    t1: float
    tv: float
    width: int

    def __post_init__(self) -> None:
        if not all(isfinite(t) and t > 0 for t in (self.t1, self.tv)) or self.width < 2:
            raise ValueError(f"no verifier: t1 {self.t1}, tv {self.tv}, width {self.width}")

    @property
    def tokens_needed(self) -> float:
        """Tokens that a call must yield on average to be as fast as plain steps: E = tv / t1."""
        return self.tv / self.t1

    @property
    def best(self) -> float:
        """Speed-up where every draft is right: w t1 / tv."""
        return self.width / self.tokens_needed

    @property
    def reachable(self) -> bool:
        """Whether there is an acceptance at which it is as fast as plain steps."""
        return self.best >= 1

    @property
    def most_tv(self) -> float:
        """Seconds of a call above which it cannot pay: w t1."""
        return self.width * self.t1

    @property
    def share_needed(self) -> float | None:
        """Share of all drafts that must become tokens, (E - 1) / (w - 1); None: unreachable.

        This is `accepted / drafted` as it is counted, of any drafts, independent or not.
        """
        if not self.reachable:
            return None
        return max(0.0, (self.tokens_needed - 1) / (self.width - 1))

    @property
    def acceptance_needed(self) -> float | None:
        """The a at which independent drafts yield E tokens a call; None: unreachable."""
        if not self.reachable:
            return None
        return acceptance(self.tokens_needed, self.width)

    def tok_s(self, calls: int, accepted: int, steps: int, again: int = 0) -> float:
        """Tokens a second of a run of calls and plain steps.

        Args:
            calls: verifier calls, each of one token and those accepted.
            accepted: drafts of all calls that became tokens.
            steps: for lack of a draft, each of one token.
            again: steps run again, which add none.
        """
        seconds = calls * self.tv + (steps + again) * self.t1
        return (calls + accepted + steps) / seconds


def expected_tokens(a: float, width: int) -> float:
    """Tokens of a call at independent acceptance `a`: 1 + a + ... + a^(w-1)."""
    return sum(a**i for i in range(width))


def acceptance(tokens: float, width: int) -> float:
    """The independent acceptance at which a call yields `tokens`: 0 for one, 1 for `width`.

    By bisection, as the yield rises with it; 0 for fewer than one, 1 for more than `width`.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, width) < tokens:
            low = middle
        else:
            high = middle
    return high
