"""Tiny shards converted, read back and run: the reference's numbers, states, exact zeros."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from pytest_ane.gates.placement import forecast
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from tests.models.families.gemma4.tiny import hidden, tiny_model

pytestmark = pytest.mark.slow

MODEL = tiny_model(["head.0", "head.1"], top_k_experts=2, hidden_size=32, seed=3)
CLOSE = {"rtol": 2e-2, "atol": 4e-3}
Converted = Callable[[str], MLModel]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """A shard's package, converted once."""

    @cache
    def package(shard: str) -> MLModel:
        path = tmp_path_factory.mktemp("packages") / "shard.mlpackage"
        with converter_notes():
            conversion = MODEL.conversion(shard)
            model = convert(conversion, max_tokens=4, target="iOS18", subject=shard)
            model.save(str(path))
        return read_model(path)

    return package


def test_packs_give_the_reference_s_rows_and_zeros(converted: Converted) -> None:
    x = hidden(12, 32)
    total = np.zeros_like(x)
    for shard in ("L00.p0", "L00.p3", "L00.p7"):
        entering = np.concatenate([x, total], axis=1) if shard == "L00.p7" else x
        expected = MODEL.reference(shard)([entering])[0]
        session, layout = Session(converted(shard)), MODEL.layout(shard)
        calls = [layout.inputs(entering[i : i + 4]) for i in (0, 4, 8)]
        found = np.concatenate([layout.output(session.predict(call)) for call in calls])
        np.testing.assert_allclose(found, expected, **CLOSE)
        np.testing.assert_array_equal(found.any(axis=1), expected.any(axis=1))
        if shard != "L00.p7":
            assert 0 < expected.any(axis=1).sum() < 12
            total += expected


@pytest.mark.parametrize("shard", ["L00.attn", "L01.attn"])
def test_attention_steps_by_one_and_by_four(converted: Converted, shard: str) -> None:
    x = hidden(8, 32)
    expected = MODEL.reference(shard)([x])[0]
    session, layout = Session(converted(shard)), MODEL.layout(shard)
    outputs, states = [], []
    for size in (1, 4):
        state = session.make_state()
        calls = [layout.inputs(x[i : i + size], i) for i in range(0, 8, size)]
        outputs.append(np.concatenate([layout.output(session.predict(c, state)) for c in calls]))
        states.append({name: np.array(s.read(), dtype=np.float32) for name, s in state.items()})
        np.testing.assert_allclose(outputs[-1], expected, **CLOSE)
    np.testing.assert_allclose(*outputs, atol=4e-3)
    for name in ("k_cache", "v_cache"):
        by_one, by_four = (s[name] for s in states)
        np.testing.assert_allclose(by_one, by_four, atol=4e-3)
        assert by_one[..., :8].any(axis=2).all()
        assert not by_one[..., 8:].any()


def test_head(converted: Converted) -> None:
    x = hidden(3, 32)
    session, layout = Session(converted("head.1")), MODEL.layout("head.1")
    found = layout.output(session.predict(layout.inputs(x)))
    np.testing.assert_allclose(found, MODEL.reference("head.1")([x])[0], rtol=2e-2, atol=1e-2)


def test_a_pack_s_ops(converted: Converted) -> None:
    """34 compute ops, as the published plan of pack p0 counts; four of them convolutions."""
    operations = converted("L00.p0").main.walk()
    kinds = Counter(op.op for op in operations if op.op != "const")
    assert kinds.total() == 34
    assert kinds["conv"] == 4


@pytest.mark.parametrize("shard", ["L00.attn", "L01.attn", "L00.p0", "L00.p7", "head.1"])
def test_no_op_is_kept_off_the_ane(converted: Converted, shard: str) -> None:
    found = forecast(converted(shard), size_bytes=1_000_000)
    assert found.ineligible() == 0, list(found.of("ineligible"))
