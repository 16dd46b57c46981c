"""A model over a source: embedding, layouts, ports of its shards, and what does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError, ManifestError, SourceError
from pytest_ane.models.families import Cut, Port
from pytest_ane.models.families.zaya import layout, open_model
from tests.models.families.zaya.tiny import CONTEXT, tiny_model, tiny_source


def test_embedding_rows() -> None:
    model = tiny_model()
    table = model.source.tensors["model.embed_tokens.weight"]
    np.testing.assert_array_equal(model.embed([3, 0, 3]), table[[3, 0, 3]])


def test_an_attention_layer_s_ports() -> None:
    conversion = tiny_model().conversion("L00")
    assert conversion.inputs == (
        Port("x", (1, 12, "T", 1)),
        Port("cos", (1, 1, 2, "T")),
        Port("sin", (1, 1, 2, "T")),
        Port("mask", (1, 1, "T", CONTEXT)),
        Port("write", (1, 1, "T", CONTEXT)),
    )
    assert conversion.outputs == (Port("y", (1, 12, "T", 1)),)
    assert conversion.states == (
        Port("kv_cache", (4, 1, CONTEXT, 4)),
        Port("tail", (1, 1, 2, 28)),
    )


def test_a_mixture_s_and_a_slice_s_ports() -> None:
    model = tiny_model(("L01", "head.0", "head.1"))
    mixture, slice_ = model.conversion("L01"), model.conversion("head.1")
    assert mixture.inputs == slice_.inputs == (Port("x", (1, 12, "T", 1)),)
    assert mixture.outputs == (Port("y", (1, 12, "T", 1)),)
    assert slice_.outputs == (Port("y", (1, 6, "T", 1)),)
    assert mixture.states == slice_.states == ()


def test_what_a_position_sees() -> None:
    model = tiny_model(("L00", "L01", "head.0"))
    assert [model.layout(s).sees for s in ("L00", "L01", "head.0")] == ["state", "itself", "itself"]
    x = np.ones((2, 12), np.float32)
    assert set(model.layout("L01").inputs(x)) == {"x"}
    assert set(model.layout("L00").inputs(x, 3)) == {"x", "cos", "sin", "mask", "write"}


def test_inputs_have_the_shapes_of_the_ports() -> None:
    model = tiny_model()
    inputs = model.layout("L00").inputs(np.ones((3, 12), np.float32), start=4)
    for port in model.conversion("L00").inputs:
        assert inputs[port.name].shape == tuple(3 if d == "T" else d for d in port.shape)


def test_positions_beyond_the_state() -> None:
    with pytest.raises(ExecutionError, match=r"positions 10 to 12 do not fit a state of 12"):
        tiny_model().layout("L00").inputs(np.ones((3, 12), np.float32), start=10)


def test_another_family_s_output() -> None:
    with pytest.raises(ExecutionError, match="A shard of family 'zaya' gives y"):
        tiny_model().layout("L00").output({"z": np.zeros((1, 1, 1, 1))})


@pytest.mark.parametrize("shard", ["L00", "L01"])
def test_the_description_survives_json_and_rebuilds_the_layout(shard: str) -> None:
    model = tiny_model()
    assert layout(json.loads(json.dumps(model.description)), shard) == model.layout(shard)


def test_what_the_cut_leaves_out() -> None:
    model = tiny_model(("L01", "head.0"), layers=4)
    assert model.missing == ["L00", "L02", "L03"]
    assert model.positions == CONTEXT


def test_nothing_is_read_before_a_shard_is_asked_for() -> None:
    source = tiny_source()
    open_model(source, Cut(("L00", "head.0")))
    assert source.read == []


def test_a_layer_the_model_does_not_have() -> None:
    with pytest.raises(SourceError) as error:
        tiny_model(("L02",))
    assert str(error.value) == "tiny: has 2 layers, so no shard L02."


def test_a_slice_is_missing() -> None:
    with pytest.raises(ManifestError, match=r"The head's slices are head\.1"):
        tiny_model(("head.1",))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.zaya_block.router.router_states_scale",
        "model.res_scale.hidden_states_scale",
        "lm_head.weight",
    ],
)
def test_tensors_that_a_published_model_has_beside(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros((11, 12), np.float32)
    open_model(source, Cut(("L00",)))


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.qkv_proj.q_proj.weight", "model.layers.0.self_attn.o_proj.bias"],
)
def test_a_tensor_that_would_be_left_out(name: str) -> None:
    source = tiny_source()
    source.tensors[name] = np.zeros(1, np.float32)
    with pytest.raises(SourceError) as error:
        open_model(source, Cut(("L00",)))
    assert str(error.value) == (
        f"tiny: family 'zaya' does not compute with its tensor {name!r} (1 such in all), so "
        "its reference would be another model. It reads the names of transformers, and those of "
        "the first release, which Zyphra keeps as ZAYA1-8B-legacy."
    )
