"""Ids of blocks and head slices: their order, their gaps, and what vocabulary a slice has."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families import Wire
from pytest_ane.models.families.blocks import (
    block_index,
    head_index,
    is_head,
    missing,
    slice_bounds,
    slices,
    starts_whole,
    wiring,
)


def test_shards_in_running_order() -> None:
    shards = ["head.10", "L10", "L02", "head.2", "L01"]
    assert wiring(shards, "mine") == (
        Wire("L01"),
        Wire("L02"),
        Wire("L10"),
        Wire("head.2", gives="logits", mode="append", kind="head"),
        Wire("head.10", gives="logits", mode="append", kind="head"),
    )
    assert wiring([], "mine") == ()


@given(st.permutations([*(f"L{i:02}" for i in range(12)), *(f"head.{i}" for i in range(12))]))
def test_the_chain_does_not_depend_on_the_manifest_s_order(shards: list[str]) -> None:
    ids = [wire.shard for wire in wiring(shards, "mine")]
    assert ids == [*(f"L{i:02}" for i in range(12)), *(f"head.{i}" for i in range(12))]


@pytest.mark.parametrize("name", ["encoder", "L", "L00.p0", "head", "l00", "head.x", "L00\n"])
def test_a_shard_that_is_neither_block_nor_head(name: str) -> None:
    with pytest.raises(ManifestError) as error:
        wiring(["L00", name], "mine")
    assert str(error.value) == (
        f"Family 'mine' has no shard {name!r}; blocks are L00, L01, ... and vocabulary slices of "
        "the head are head.0, head.1, ..."
    )


def test_indices() -> None:
    assert (block_index("L07"), block_index("L110"), head_index("head.2")) == (7, 110, 2)
    assert [is_head(shard) for shard in ("L00", "head.0")] == [False, True]


def test_a_stack_is_whole_up_to_its_last_block() -> None:
    assert starts_whole(["L01", "head.3", "L00"])
    assert not starts_whole(["L01", "head.0"])
    assert missing(["L01", "head.0"], 4) == ["L00", "L02", "L03"]


def test_the_head_is_one_slice_or_a_row_of_them() -> None:
    assert slices(["L00"]) == 1
    assert slices(["head.1", "L00", "head.0"]) == 2
    with pytest.raises(ManifestError, match=r"number them head\.0 to head\.1"):
        slices(["head.0", "head.2"])


def test_ten_words_in_three_slices() -> None:
    assert [slice_bounds(10, 3, i) for i in range(3)] == [(0, 3), (3, 6), (6, 10)]


@given(st.integers(1, 200_000), st.integers(1, 64))
def test_slices_cover_the_vocabulary_once_and_evenly(vocabulary: int, parts: int) -> None:
    bounds = [slice_bounds(vocabulary, parts, i) for i in range(parts)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == vocabulary
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    sizes = {high - low for low, high in bounds}
    assert max(sizes) - min(sizes) <= 1
