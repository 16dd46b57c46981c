"""What speculative decoding said, and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Speculated:
    """A greedy continuation and what it took.

    Every token but the first comes from a call with drafts (that it accepts, or the one after
    them) or from a step without: `len(tokens) - 1 == verifier_calls + accepted + fallbacks`.

    Attributes:
        tokens: the continuation; the first comes from the prompt's own last position.
        calls: seconds of every call with drafts.
        steps: seconds of every step without, for lack of a draft.
        replays: seconds of every step that was run again for a near tie.
        drafted: tokens given to calls as drafts.
        accepted: those of them that became tokens.
        prefill: seconds from the prompt to the first token.
    """

    tokens: list[int] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    replays: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    prefill: float = 0.0

    @property
    def verifier_calls(self) -> int:
        """Calls with drafts."""
        return len(self.calls)

    @property
    def fallbacks(self) -> int:
        """Steps without a draft."""
        return len(self.steps)

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that became tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def seconds(self) -> float:
        """What all tokens but the first took."""
        return sum(self.calls) + sum(self.steps) + sum(self.replays)
