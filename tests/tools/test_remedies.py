"""Settings that would mend a weight: offered by bytes, taken when they leave little."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ane.manifest import Settings
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools.blame import describe
from pytest_ane.tools.blame.weights import accepted, candidates, find_remedy, has_even_steps

SHAPE = (64, 32, 1, 1)


def weight(bits: int, groups: int, op: str = "constexpr_lut_to_dense") -> Weight:
    size = 64 * 32 * bits // 8 + groups * 2 * 2**bits
    return Weight("w", SHAPE, size, bits, (Stage(op, bits, groups),))


def offered(given: Weight, *, even: bool = False) -> list[tuple[str, int]]:
    return [(describe(s), size) for size, s in candidates(given, 0, even=even)]


def test_palettes_of_more_bits_and_smaller_groups() -> None:
    assert offered(weight(4, 2)) == [
        ("4-bit kmeans, groups of 16", 1024 + 4 * 32),
        ("4-bit kmeans, groups of 8", 1024 + 8 * 32),
        ("6-bit kmeans, groups of 32", 1536 + 2 * 128),
        ("6-bit kmeans, groups of 16", 1536 + 4 * 128),
        ("8-bit kmeans, groups of 32", 2048 + 2 * 512),
        ("fp16", 4096),
    ]  # 8 bits in groups of 16 take what fp16 takes.


def test_even_steps_give_way_to_k_means_for_nothing() -> None:
    small = weight(4, 2)
    assert offered(small, even=True)[0] == ("4-bit kmeans, groups of 32", small.compressed_bytes)


def test_one_table_for_a_weight() -> None:
    assert offered(weight(6, 1))[:2] == [
        ("6-bit kmeans, groups of 32", 1536 + 2 * 128),
        ("6-bit kmeans, groups of 16", 1536 + 4 * 128),
    ]


def test_without_an_axis_there_are_no_groups() -> None:
    found = [describe(s) for _, s in candidates(weight(4, 1), None, even=False)]
    assert found == ["6-bit kmeans, one table", "8-bit kmeans, one table", "fp16"]


def test_integers() -> None:
    found = [name for name, _ in offered(weight(4, 64, "constexpr_blockwise_shift_scale"))]
    assert "int8 per channel" in found
    assert found[-1] == "fp16"
    wide = weight(8, 64, "constexpr_blockwise_shift_scale")
    assert "int8 per channel" not in [name for name, _ in offered(wide)]


def test_the_first_that_leaves_a_tenth_is_taken() -> None:
    """From 1 to 0.6 when restored: the square may be 0.36 + 0.064 at most."""
    small = weight(4, 2)
    offers, asked = candidates(small, 0, even=False), []

    def error(given: Settings) -> float:
        asked.append(describe(given))
        return {1: 0.7, 2: 0.66, 3: 0.65}[len(asked)]

    mend = find_remedy(small, offers, now=1.0, restored=0.6, error=error)
    assert asked == [describe(s) for _, s in offers[:3]]
    assert (describe(mend.settings), mend.error, mend.more) == (
        "6-bit kmeans, groups of 32", 0.65, 1792 - small.compressed_bytes,
    )  # fmt: skip


def test_fp16_where_nothing_else_helps() -> None:
    small = weight(4, 2)
    offers = candidates(small, 0, even=False)
    for bad in (1.0, math.inf, math.nan):
        mend = find_remedy(small, offers, now=1.0, restored=0.6, error=lambda _, bad=bad: bad)
        assert (describe(mend.settings), mend.error, mend.more) == (
            "fp16", 0.6, 4096 - small.compressed_bytes,
        )  # fmt: skip


def test_an_error_that_is_not_finite() -> None:
    assert accepted(math.inf, 0.5) == pytest.approx(1.1 * 0.25)
    assert accepted(math.inf, math.inf) == math.inf


def test_even_steps() -> None:
    line = np.linspace(-1, 3, 16, dtype=np.float16).reshape(1, 1, 16, 1)
    assert has_even_steps(line)
    assert not has_even_steps(line**3)
    assert not has_even_steps(np.concatenate([line, line**3]))
    assert not has_even_steps(np.float16([[[0.0], [np.nan]]]))
