"""Shard ids, running order, and the streams that packs share."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families import Wire, apply_output, shard_input
from pytest_ane.models.families.blocks import slices
from pytest_ane.models.families.gemma4.shards import layer_shards, starts_whole, wiring

LAYER = ("L00.attn", *(f"L00.p{i}" for i in range(8)))


def test_a_layer_s_wires() -> None:
    wires = wiring(["head.1", "L00.p7", "L01.attn", "head.0", "L00.p1", "L00.p0", "L00.attn"])
    assert wires == (
        Wire("L00.attn", kind="attention"),
        Wire("L00.p0", gives="moe", kind="pack"),
        Wire("L00.p1", gives="moe", mode="add", kind="pack"),
        Wire("L00.p7", takes=("x", "moe"), kind="last pack"),
        Wire("L01.attn", kind="attention"),
        Wire("head.0", gives="logits", mode="append", kind="head"),
        Wire("head.1", gives="logits", mode="append", kind="head"),
    )


def test_packs_sum_into_what_the_last_takes() -> None:
    """With packs that give 1, 2, 3, ... the last one sees 28 beside x."""
    streams = {"x": np.full((2, 1), 9, np.float32)}
    for number, wire in enumerate(wiring(LAYER[1:8]), start=1):
        apply_output(streams, wire, np.full((2, 1), number, np.float32))
    last = wiring(LAYER[8:])[0]
    assert shard_input(streams, last).tolist() == [[9, 28], [9, 28]]


def test_another_layer_starts_its_sum_anew() -> None:
    assert all(wire.mode == "set" for wire in wiring(["L00.p0", "L01.p0"]))


@pytest.mark.parametrize("shard", ["L00", "L00.p8", "L00.q0", "head", "l00.p0", "L00.p0.x"])
def test_unknown_ids(shard: str) -> None:
    with pytest.raises(ManifestError, match=r"has no shard .*L00\.p0 to L00\.p7"):
        wiring([shard])


@pytest.mark.parametrize(
    ("shards", "whole"),
    [
        ([], True),
        (["L00.attn"], True),
        (["L00.p0"], False),
        (["L00.p0", "L00.attn"], True),
        (["L00.attn", "L00.p1"], False),
        (LAYER, True),
        ([*LAYER, "L01.attn"], True),
        ([*LAYER, "L02.attn"], False),
        ([*LAYER, "head.0"], True),
        ([*LAYER[:-1], "head.0"], False),
        ([*LAYER[:-1], "L01.attn"], False),
    ],
)
def test_starts_whole(shards: list[str], whole: bool) -> None:
    assert starts_whole(shards) == whole


def test_all_shards_of_a_layer() -> None:
    assert layer_shards(0) == LAYER


def test_head_slices_are_counted() -> None:
    assert slices(["head.1", "L00.p0", "head.0"]) == 2
    with pytest.raises(ManifestError, match=r"number them head\.0 to head\.1"):
        slices(["head.0", "head.2"])
