"""A model over a source: embedding, ports of its shards, description, and what does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Port
from pytest_ane.models.families.llama import FAMILY
from tests.models.families.llama.tiny import tiny_model, tiny_source


def test_embedding_rows() -> None:
    model = tiny_model()
    table = model.source.tensors["token_embd.weight"]
    np.testing.assert_array_equal(model.embed([3, 0, 3]), table[[3, 0, 3]])


def test_a_block_s_ports() -> None:
    conversion = tiny_model().conversion("L00")
    assert conversion.inputs == (
        Port("x", (1, 16, "T", 1)),
        Port("cos", (1, 1, 4, "T")),
        Port("sin", (1, 1, 4, "T")),
        Port("mask", (1, 1, "T", "T")),
    )
    assert conversion.outputs == (Port("y", (1, 16, "T", 1)),)


def test_a_stateful_block_s_ports() -> None:
    conversion = tiny_model(context=6).conversion("L00")
    assert conversion.inputs[3:] == (
        Port("mask", (1, 1, "T", 6)),
        Port("write", (1, 1, "T", 6)),
    )
    assert conversion.states == (
        Port("k_cache", (2, 1, 4, 6)),
        Port("v_cache", (2, 1, 4, 6)),
    )


def test_what_the_cut_leaves_out() -> None:
    model = tiny_model(("L01", "head.0"), layers=3)
    assert model.missing == ["L00", "L02"]
    assert not tiny_model(("L00",)).missing


def test_how_much_the_shards_take() -> None:
    assert (tiny_model().positions, tiny_model(context=6).positions) == (8, 6)


def test_a_head_slice_s_ports() -> None:
    conversion = tiny_model(("head.0", "head.1", "head.2")).conversion("head.2")
    assert conversion.inputs == (Port("x", (1, 16, "T", 1)),)
    assert conversion.outputs == (Port("y", (1, 4, "T", 1)),)


def test_the_description_survives_json_and_rebuilds_the_layout() -> None:
    model = tiny_model()
    described = json.loads(json.dumps(model.description))
    assert FAMILY.layout(described, "L00") == model.layout("L00")


def test_nothing_is_read_before_a_shard_is_asked_for() -> None:
    source = tiny_source()
    FAMILY.open_model(source, Cut(("L00", "head.0")))
    assert source.read == []


def test_a_block_the_model_does_not_have() -> None:
    with pytest.raises(SourceError) as error:
        tiny_model(("L00", "L01"))
    assert str(error.value) == "tiny.gguf: has 1 layers, so no shard L01."


@pytest.mark.parametrize("heads", [("head.1",), ("head.0", "head.2"), ("head.0", "head.00")])
def test_slices_that_are_not_the_whole_vocabulary(heads: tuple[str, ...]) -> None:
    with pytest.raises(ManifestError) as error:
        tiny_model(("L00", *heads))
    assert str(error.value) == (
        f"The head's slices are {', '.join(heads)}; number them head.0 to head.{len(heads) - 1}, "
        "so that together they are the whole vocabulary."
    )


def test_a_file_with_a_tensor_that_would_be_left_out() -> None:
    source = tiny_source()
    source.tensors["blk.0.attn_norm.bias"] = np.zeros(16, np.float32)
    with pytest.raises(
        SourceError, match=r"does not compute with its tensor 'blk\.0\.attn_norm\.bias'"
    ):
        FAMILY.open_model(source, Cut(("L00",)))
