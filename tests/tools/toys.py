"""Toy chains with states that can go back, whose wide calls round otherwise than single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Wire

VOCABULARY = 5
Call = tuple[int, int]
"""Position and length."""


def mixed(*numbers: int) -> int:
    """A number below 2**32 that looks drawn."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class Cache:
    """Keeps every row at its place, as a key-value cache; what is later stays there, unseen.

    Rows are `[digest, touched]`: `touched` counts rows that a call of several positions wrote.
    """

    def __init__(self, seed: int, calls: list[Call]) -> None:
        self.seed, self.calls = seed, calls
        self.start, self.rows = 0, np.full((64, 2), -7)

    def __call__(self, hidden: Any) -> Any:
        self.calls.append((self.start, len(hidden)))
        found = []
        for row in hidden:
            wide = self.start >= 8 and len(hidden) > 1
            self.rows[self.start] = int(row[0]), int(row[1]) + wide
            self.start += 1
            seen = self.rows[: self.start]
            found.append([mixed(self.seed, *map(int, seen[:, 0])), int(seen[:, 1].sum())])
        return np.array(found)

    def mark(self) -> int:
        return self.start

    def back(self, mark: int, keep: int = 0) -> None:
        self.start = mark + keep


class Tail:
    """Keeps one number made of all rows, as a recurrent state."""

    def __init__(self, seed: int) -> None:
        self.state = seed, 0
        self.latest: Any = None

    def __call__(self, hidden: Any) -> Any:
        self.latest, found = hidden, []
        for row in hidden:
            digest, touched = self.state
            self.state = mixed(digest, int(row[0])), touched + int(row[1])
            found.append(self.state)
        return np.array(found)

    def mark(self) -> tuple[int, int]:
        return self.state

    def back(self, mark: tuple[int, int], keep: int = 0) -> None:
        self.state = mark
        if keep:
            self(self.latest[:keep])


def chaotic(
    seed: int = 0,
    *,
    off: float = 0.0,
    positions: int | None = None,
    calls: list[Call] | None = None,
) -> Chain:
    """Its next token hangs on all tokens so far; logits are tenths, so that many are level.

    Each logit is off by less than `off` where a call of several positions has had a part in it.
    (The first 8 positions are the prompt's, whose call is the same in plain decoding.)
    """
    noted: list[Call] = [] if calls is None else calls

    def logits(hidden: Any) -> Any:
        rows = []
        for digest, touched in hidden.astype(int):
            exact = np.random.default_rng(digest).integers(0, 6, VOCABULARY) / 10
            noise = np.random.default_rng([digest, touched]).uniform(-off, off, VOCABULARY)
            rows.append(exact + noise * 0.999 * (touched > 0))
        return np.array(rows)

    steps = (
        ChainStep(Wire("L00"), lambda: Cache(seed, noted), "state"),
        ChainStep(Wire("L01"), lambda: Tail(seed), "state"),
        ChainStep(Wire("head.0", gives="logits", mode="append"), lambda: logits, "itself"),
    )
    return Chain(embed, steps, positions=positions)


def embed(ids: Sequence[int]) -> Any:
    return np.array([[token, 0] for token in ids])
