"""Tensors by shard: names, shapes, row order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.models.families import Cut
from pytest_ane.models.families.decoder.weights import Weights, in_halves
from pytest_ane.models.families.llama import FAMILY
from tests.models.families.llama.tiny import tiny_source

SOURCE = tiny_source(layers=2, vocabulary=10)
CONFIG, NAMES = FAMILY.read(SOURCE, Cut(()), slices=3)


def test_one_head_of_four_rows_goes_from_pairs_to_halves() -> None:
    stored = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert in_halves(stored, 1).flatten().tolist() == [0, 2, 1, 3]


def test_each_head_keeps_its_rows() -> None:
    stored = torch.arange(12.0).reshape(12, 1)
    assert in_halves(stored, 2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
def test_unpermuting_undoes_the_converter_s_permutation(
    heads: int, pairs: int, columns: int
) -> None:
    """llama.cpp's converter goes from halves to pairs: `[h, 2, d/2, in]` to `[h, d/2, 2, in]`."""
    weight = torch.randn(heads * 2 * pairs, columns, generator=torch.Generator().manual_seed(0))
    stored = weight.reshape(heads, 2, pairs, columns).swapaxes(1, 2).reshape(weight.shape)
    torch.testing.assert_close(in_halves(stored, heads), weight, rtol=0, atol=0)


def test_a_block_s_tensors_come_from_that_block() -> None:
    w = Weights(SOURCE, CONFIG, NAMES).block(1)
    tensors = SOURCE.tensors
    assert torch.equal(w.v.weight, torch.from_numpy(tensors["blk.1.attn_v.weight"]))
    assert torch.equal(w.down.weight, torch.from_numpy(tensors["blk.1.ffn_down.weight"]))
    assert torch.equal(w.ffn_norm, torch.from_numpy(tensors["blk.1.ffn_norm.weight"]))
    assert torch.equal(w.q.weight, in_halves(torch.from_numpy(tensors["blk.1.attn_q.weight"]), 4))
    assert torch.equal(w.k.weight, in_halves(torch.from_numpy(tensors["blk.1.attn_k.weight"]), 2))


def test_a_block_reads_no_other_block() -> None:
    source = tiny_source(layers=2)
    Weights(source, CONFIG, NAMES).block(0)
    assert len(source.read) == 9
    assert {name.split(".")[1] for name in source.read} == {"0"}


def test_a_tied_head_is_the_embedding() -> None:
    head = Weights(SOURCE, CONFIG, NAMES).head(1)
    assert torch.equal(head.projection, torch.from_numpy(SOURCE.tensors["token_embd.weight"][3:6]))
    assert torch.equal(head.norm, torch.from_numpy(SOURCE.tensors["output_norm.weight"]))


def test_an_untied_head_is_its_own_tensor() -> None:
    source = tiny_source(tied=False)
    config, names = FAMILY.read(source, Cut(()), slices=3)
    head = Weights(source, config, names).head(0)
    assert torch.equal(head.projection, torch.from_numpy(source.tensors["output.weight"][:3]))
