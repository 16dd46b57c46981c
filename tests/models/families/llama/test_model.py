"""A model over a source: its configuration, embedding, layouts, ports, and what does not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError, SourceError
from pytest_ane.models.families import Cut, Port
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.decoder import DecoderConfig, Layer
from pytest_ane.models.families.decoder._forms import Weights, in_halves
from pytest_ane.models.sources import Source
from tests.models.families.llama.tiny import tiny_model, tiny_source
from tests.models.families.rotary import plain_rotary


def read(**changes: Any) -> DecoderConfig:
    """The configuration of a tiny model with some of its metadata changed."""
    source = tiny_source(layers=2, heads=4, kv_heads=2, head=8, ffn=20, vocabulary=11)
    source.values |= {key.replace("__", "."): value for key, value in changes.items()}
    return LLAMA.read(source, Cut(()), slices=3)[0]


def test_dimensions_are_read_from_metadata() -> None:
    assert read() == DecoderConfig(
        family="llama",
        layers=(Layer(), Layer()),
        width=32,
        ffn=20,
        heads=4,
        kv_heads=2,
        head=8,
        epsilon=1e-5,
        scale=8**-0.5,
        rotaries=(plain_rotary(8, 10000.0),),
        vocabulary=11,
        slices=3,
    )


def test_the_default_model_s_dimensions(smollm2: Source) -> None:
    config = LLAMA.read(smollm2, Cut((), context=9, stateful=True), slices=4)[0]
    assert (len(config.layers), config.width, config.ffn) == (30, 576, 1536)
    assert (config.heads, config.kv_heads, config.head) == (9, 3, 64)
    assert (config.rotaries, config.vocabulary) == ((plain_rotary(64, 100000.0),), 49152)
    assert config.epsilon == pytest.approx(1e-5)
    assert config.context == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "qwen2"}, "tiny.gguf: architecture 'qwen2', expected 'llama'."),
        ({"llama__attention__head_count": 0}, "head_count is 0, no positive number."),
        ({"llama__attention__head_count_kv": [2, 4]}, "head_count_kv is [2, 4], no positive"),
        ({"llama__rope__freq_base": float("nan")}, "freq_base is nan, no positive number."),
        ({"llama__attention__head_count_kv": 3}, "4 query heads, 3 key heads and 8 channels"),
        ({"llama__embedding_length": 33}, "its metadata has no llama.attention.key_length."),
        ({"llama__rope__dimension_count": 4}, "has llama.rope.dimension_count 4, which"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.original_context_length"),
    ],
)
def test_another_architecture_or_variant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as error:
        read(**changes)
    assert message in str(error.value)


def test_a_variant_s_key_with_the_value_that_is_computed() -> None:
    assert read(llama__rope__dimension_count=8, llama__rope__scaling__type="none") == read()


SOURCE = tiny_source(layers=2, vocabulary=10)
CONFIG, NAMES = LLAMA.read(SOURCE, Cut(()), slices=3)


def test_each_head_goes_from_pairs_to_halves() -> None:
    stored = torch.arange(12.0).reshape(12, 1)
    assert in_halves(stored[:4], 1).flatten().tolist() == [0, 2, 1, 3]
    assert in_halves(stored, 2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_a_block_reads_no_other_block() -> None:
    source = tiny_source(layers=2)
    Weights(source, CONFIG, NAMES).block(0)
    assert len(source.read) == 9
    assert {name.split(".")[1] for name in source.read} == {"0"}


SMALL = AneLayout("llama", 3, plain_rotary(2, 100.0))


SHAPES = {"x": (1, 3, 2, 1), "cos": (1, 1, 2, 2), "sin": (1, 1, 2, 2)}


def test_inputs_of_a_stateful_block() -> None:
    stateful = AneLayout("llama", 3, plain_rotary(2, 100.0), 4)
    inputs = stateful.inputs(np.ones((2, 3), np.float32), start=1)
    expected = SHAPES | {"mask": (1, 1, 2, 4), "write": (1, 1, 2, 4)}
    assert {name: array.shape for name, array in inputs.items()} == expected
    np.testing.assert_allclose(inputs["cos"][0, 0, 0], [math.cos(1), math.cos(2)], rtol=1e-6)
    with pytest.raises(ExecutionError) as error:
        stateful.inputs(np.ones((2, 3), np.float32), start=3)
    assert "positions 3 to 4 do not fit a state of 4; raise context" in str(error.value)


def test_inputs_of_two_positions() -> None:
    inputs = SMALL.inputs(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))
    assert {name: array.shape for name, array in inputs.items()} == SHAPES | {"mask": (1, 1, 2, 2)}
    assert inputs["x"][0, :, 0, 0].tolist() == [1, 2, 3]
    assert inputs["x"][0, :, 1, 0].tolist() == [4, 5, 6]
    assert inputs["mask"][0, 0].tolist() == [[0, -1e4], [0, 0]]
    np.testing.assert_allclose(inputs["cos"][0, 0, :, 1], math.cos(1), rtol=1e-6)


@given(st.integers(1, 9), st.integers(1, 9))
def test_hidden_states_come_back(length: int, width: int) -> None:
    hidden = np.arange(length * width, dtype=np.float32).reshape(length, width)
    host = AneLayout("llama", width, plain_rotary(2, 100.0))
    back = host.output({"y": host.inputs(hidden)["x"]})
    np.testing.assert_array_equal(back, hidden)
    assert back.flags.c_contiguous


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        ({"z": np.zeros((1, 3, 2, 1))}, "z [1, 3, 2, 1]"),
        ({"y": np.zeros((1, 3))}, "y [1, 3]"),
        ({"y": np.zeros((1, 3, 1, 2))}, "y [1, 3, 1, 2]"),
        ({}, "nothing"),
    ],
)
def test_another_family_s_outputs(outputs: dict[str, np.ndarray], given: str) -> None:
    with pytest.raises(ExecutionError) as error:
        SMALL.output(outputs)
    assert f"A shard of family 'llama' gives y [1, C, T, 1], this one {given}" in str(error.value)


def test_a_block_s_ports_without_and_with_states() -> None:
    conversion = tiny_model().conversion("L00")
    assert conversion.inputs == (
        Port("x", (1, 16, "T", 1)),
        Port("cos", (1, 1, 4, "T")),
        Port("sin", (1, 1, 4, "T")),
        Port("mask", (1, 1, "T", "T")),
    )
    assert conversion.outputs == (Port("y", (1, 16, "T", 1)),)
    stateful = tiny_model(context=6).conversion("L00")
    assert stateful.inputs[3:] == tuple(Port(n, (1, 1, "T", 6)) for n in ("mask", "write"))
    assert stateful.states == tuple(Port(n, (2, 1, 4, 6)) for n in ("k_cache", "v_cache"))


def test_what_the_cut_leaves_out_and_the_shards_take() -> None:
    model = tiny_model(("L01", "head.0"), layers=3)
    assert model.missing == ["L00", "L02"]
    assert not tiny_model(("L00",)).missing
    assert (tiny_model().positions, tiny_model(context=6).positions) == (8, 6)


def test_a_head_slice_s_ports() -> None:
    conversion = tiny_model(("head.0", "head.1", "head.2")).conversion("head.2")
    assert conversion.inputs == (Port("x", (1, 16, "T", 1)),)
    assert conversion.outputs == (Port("y", (1, 4, "T", 1)),)


def test_nothing_is_read_before_a_shard_is_asked_for() -> None:
    source = tiny_source()
    LLAMA.open_model(source, Cut(("L00", "head.0")))
    assert source.read == []


def test_a_block_the_model_does_not_have() -> None:
    with pytest.raises(SourceError) as error:
        tiny_model(("L00", "L01"))
    assert str(error.value) == "tiny.gguf: has 1 layers, so no shard L01."
