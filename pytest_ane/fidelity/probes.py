"""Seeded probes: random inputs that are the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from pytest_ane.sources import FloatArray


def generator(*parts: object) -> np.random.Generator:
    """A random generator seeded by SHA-256 of the parts, so that streams never overlap."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def gaussian(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal values scaled to a root mean square of exactly 1 over the whole array."""
    x = rng.standard_normal(shape)
    scaled: FloatArray = (x / np.sqrt(np.mean(x * x))).astype(np.float32)
    return scaled


def unit_norm(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal rows of Euclidean norm 1 along the last axis.

    Their mean square is 1/C: at wide models the square underflows fp16 and RMSNorm's epsilon
    dominates. Kept because published residency notes probed this way.
    """
    x = rng.standard_normal(shape)
    scaled: FloatArray = (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
    return scaled


KINDS = {"gaussian": gaussian, "unit-norm": unit_norm}


def seeded(
    kinds: tuple[str, ...], *, count: int, seed: int, lengths: tuple[int, ...], width: int
) -> Iterator[tuple[str, str, FloatArray]]:
    """`(kind, name, hidden [T, C])` for each seeded kind, length and number."""
    for kind in kinds:
        if kind not in KINDS:
            continue
        for length in lengths:
            for number in range(count):
                rng = generator(seed, kind, length, width, number)
                yield kind, f"{kind} T={length} #{number}", KINDS[kind](rng, (length, width))
