"""A program run again with another constant: what a whole run gives, and nothing run in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor import replay as module
from pytest_ane.mlprogram.executor.replay import Replay, reached
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from tests.gates.fidelity import blocks

BITS = dict.fromkeys(blocks.NAMES, 2)


@pytest.fixture
def model(tmp_path: Path) -> MLModel:
    return read_model(blocks.plain(tmp_path))


def inputs() -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 32, n, 1)).astype(np.float16)} for n in (1, 5)]


def with_other(model: MLModel, name: str) -> Session:
    """The block with one weight all ones."""
    op = next(op for op in model.main.walk() if op.name == name)
    return Session(model, overrides={op: np.ones((32, 32, 1, 1), np.float32)})


def test_a_given_weight_takes_the_place_of_the_package_s(model: MLModel) -> None:
    x = inputs()[0]
    values = with_other(model, "first").predict(x, outputs=["first_out"])["first_out"]
    total = x["x"].astype(np.float32).sum()
    np.testing.assert_allclose(values, np.full((1, 32, 1, 1), total), rtol=1e-3)


@pytest.mark.parametrize("name", blocks.NAMES)
def test_a_variant_is_bit_for_bit_a_whole_run(model: MLModel, name: str) -> None:
    other = with_other(model, name)
    replay = Replay(Session(model), inputs())
    found = replay.variant(other, [name])
    for one, whole in zip(found, other.predict_all(inputs()), strict=True):
        assert np.array_equal(one["y"], whole["y"])
    # And the first run is as it was.
    for one, whole in zip(replay.outputs(), Session(model).predict_all(inputs()), strict=True):
        assert np.array_equal(one["y"], whole["y"])


def test_only_what_follows_is_run(model: MLModel, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, ran = Replay(Session(model), inputs()), []
    run = module.run_all
    monkeypatch.setattr(
        module, "run_all", lambda plan, *rest: (ran.append(len(plan.steps)), run(plan, *rest))
    )
    for name in blocks.NAMES:
        replay.variant(with_other(model, name), [name])
    # Three convolutions, two activations and the sum; each weight leaves two operations less.
    assert ran == [6, 4, 2]


def test_what_follows(model: MLModel) -> None:
    assert reached(model.main.block, ["third"]) == {"third", "third_out", "y"}
    assert reached(model.main.block, []) == set()
