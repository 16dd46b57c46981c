"""How much slower a benchmark has become, and how much of it the machine itself."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ane.gates.throughput.speed import Speed


@dataclass(frozen=True)
class Change:
    """A speed against an earlier one.

    Attributes:
        now: what was measured.
        then: what it is compared with.
    """

    now: Speed
    then: Speed

    @property
    def share(self) -> float:
        """Change of tok/s, -0.1 for a tenth less; where none are computed of seconds."""
        return self._share(self.now.median)

    @property
    def slower(self) -> float:
        """The change as how much worse it is: positive is slower."""
        return self._slower(self.share)

    @property
    def machine(self) -> float:
        """How many times as long the machine itself takes, by its yardstick: 1 at least.

        1 too where it is not known; a machine that is faster now excuses nothing.
        """
        now, then = self.now.yardstick, self.then.yardstick
        return max(now / then, 1.0) if now and then else 1.0

    @property
    def own(self) -> float:
        """The change as it were if the machine had stayed as fast as it was."""
        return self._share(self.now.median / self.machine)

    @property
    def own_slower(self) -> float:
        """Likewise, as how much worse it is."""
        return self._slower(self.own)

    def _share(self, median: float) -> float:
        if self.now.tok_s is None:
            return median / self.then.median - 1
        return self.then.median / median - 1

    def _slower(self, share: float) -> float:
        return share if self.now.tok_s is None else -share
