"""Prompt lookup: what followed the last time that the text ended like this.

Source: Apoorv Saxena, "Prompt Lookup Decoding" (2023); vLLM and transformers call it n-gram
speculation. It needs no draft model, and helps where a text repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 3, 2
"""Tokens at the end of a text that have to have been there before."""


class Lookup:
    """Drafts for one growing text; only what is new since the last draft is indexed.

    Args:
        longest: an end of so many tokens is looked for first, then shorter ones.
        shortest: down to this.
    """

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def __call__(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` tokens after the latest earlier place where `ids` ended alike, or none.

        Where that place is so near that they run into the end, they go on into themselves: what
        repeats with a period is drafted with that period.
        """
        self._index(ids)
        for size in self._sizes:
            start = self._after.get(tuple(ids[-size:])) if len(ids) >= size else None
            if start is not None:
                period = len(ids) - start
                return [ids[start + i % period] for i in range(count)]
        return []

    def _index(self, ids: Sequence[int]) -> None:
        """Where each run of tokens was last followed by another."""
        for end in range(self._indexed, len(ids)):
            for size in self._sizes:
                if end >= size:
                    self._after[tuple(ids[end - size : end])] = end
        self._indexed = len(ids)
