"""Tiny shards converted to packages and run op by op: fp16 against the float32 reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.models.families.zaya import ZayaModel
from tests.models.families.zaya.tiny import tiny_model

pytestmark = pytest.mark.slow

SHARDS = ("L00", "L01", "L02", "head.0", "head.1")


@pytest.fixture(scope="module")
def model() -> ZayaModel:
    model = tiny_model(SHARDS, layers=3, width=16, head=8, experts=4, seed=3)
    overflowing = model.source.tensors["model.layers.2.self_attn.qkv.conv_qk.0.bias"]
    overflowing += 6
    return model


@pytest.fixture(scope="module")
def sessions(model: ZayaModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    folder = tmp_path_factory.mktemp("packages")

    def build(shard: str) -> Session:
        path = folder / f"{shard}.mlpackage"
        with converter_notes():
            converted = convert(
                model.conversion(shard), max_tokens=4, target="iOS18", subject=shard
            )
            converted.save(str(path))
        return Session(read_model(path))

    return {shard: build(shard) for shard in SHARDS}


def run(session: Session, model: ZayaModel, shard: str, hidden: np.ndarray, steps: Sequence[int]):
    layout, state, start, rows = model.layout(shard), session.make_state(), 0, []
    for length in steps:
        inputs = layout.inputs(hidden[start : start + length], start)
        rows.append(layout.output(session.predict(inputs, state)))
        start += length
    return np.concatenate(rows), state


def operations(session: Session) -> Counter[str]:
    return Counter(op.op for op in session.model.main.block.operations)


@pytest.mark.parametrize("shard", SHARDS)
def test_in_steps_of_1_and_in_one_call_of_4(
    model: ZayaModel, sessions: dict[str, Session], shard: str
) -> None:
    hidden = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    (expected,) = model.reference(shard)([hidden])
    single, one = run(sessions[shard], model, shard, hidden, [1] * 8)
    four, many = run(sessions[shard], model, shard, hidden, [4, 4])
    for actual in (single, four):
        assert np.abs(actual - expected).max() <= 4e-3 * np.abs(expected).max()
    assert np.abs(single - four).max() <= 2e-3 * np.abs(expected).max()
    assert set(one) == set(many)
    for name in one:
        np.testing.assert_allclose(one[name].read(), many[name].read(), atol=4e-3)


@pytest.mark.parametrize(
    ("shard", "convolutions", "states"),
    [
        ("L00", 4, {"kv_cache", "tail"}),
        ("L01", 4 + 2 * 4, set()),
        ("L02", 2, {"kv_cache", "tail"}),
        ("head.1", 1, set()),
    ],
)
def test_structure(
    sessions: dict[str, Session], shard: str, convolutions: int, states: set[str]
) -> None:
    counted = operations(sessions[shard])
    assert counted["conv"] == convolutions
    assert {feature.name for feature in sessions[shard].model.states} == states
    # What keeps a program off the ANE.
    assert not {"scatter", "gather", "topk", "cond", "while_loop"} & counted.keys()
    assert counted["cast"] == 0
