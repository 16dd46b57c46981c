"""The host's side: rotary tables, windows, and where positions go."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families.gemma4 import FAMILY
from pytest_ane.models.families.layout import MASKED, Rotary, causal_mask
from tests.models.families.gemma4.tiny import hidden, tiny_model


def test_a_share_of_a_global_head_turns() -> None:
    """Of 16 channels a quarter: pairs (0, 8) and (1, 9), at frequencies of all 16."""
    rotary = tiny_model(global_head_dim=16).layout("L01.attn").rotary
    assert rotary is not None
    cos, sin = rotary.tables(3, start=1)
    angle = np.outer([1, 2, 3], [1.0, 1000.0 ** (-2 / 16)])
    for pair in (0, 1):
        for channel in (pair, pair + 8):
            np.testing.assert_allclose(cos[:, channel], np.cos(angle[:, pair]), rtol=1e-6)
            np.testing.assert_allclose(sin[:, channel], np.sin(angle[:, pair]), rtol=1e-6)
    still = [*range(2, 8), *range(10, 16)]
    assert (cos[:, still] == 1).all()
    assert (sin[:, still] == 0).all()


def test_a_whole_sliding_head_turns() -> None:
    assert (Rotary.plain(16, 100.0).tables(2, start=1)[1] != 0).all()


def test_a_window_of_three() -> None:
    seen = causal_mask(2, 3, 6, window=3) == 0
    assert seen.astype(int).tolist() == [[0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]


def test_no_window() -> None:
    hidden_ = causal_mask(2, 1, 4)
    assert hidden_.tolist() == [[0, 0, MASKED, MASKED], [0, 0, 0, MASKED]]


def test_attention_s_inputs() -> None:
    inputs = tiny_model(context=6).layout("L01.attn").inputs(hidden(2, 8), start=3)
    shapes = {name: value.shape for name, value in inputs.items()}
    assert shapes == {
        "x": (1, 8, 2, 1),
        "cos": (1, 1, 8, 2),
        "sin": (1, 1, 8, 2),
        "mask": (1, 1, 2, 6),
        "write": (1, 1, 2, 6),
    }
    assert np.argwhere(inputs["write"][0, 0]).tolist() == [[0, 3], [1, 4]]


def test_beyond_the_state() -> None:
    with pytest.raises(ExecutionError, match="positions 5 to 6 do not fit a state of 6"):
        tiny_model(context=6).layout("L00.attn").inputs(hidden(2, 8), start=5)


def test_packs_and_head_take_x_alone() -> None:
    model = tiny_model(["head.0"])
    for shard, width in (("L00.p0", 8), ("L00.p7", 16), ("head.0", 8)):
        found = model.layout(shard)
        assert (found.width, found.sees) == (width, "itself")
        assert found.inputs(hidden(2, width)).keys() == {"x"}
    assert model.layout("L00.attn").sees == "state"


def test_rebuilt_from_the_description() -> None:
    import json

    model = tiny_model(context=6)
    description = json.loads(json.dumps(model.description))
    for shard in ("L00.attn", "L01.attn", "L00.p0", "L00.p7", "head.0"):
        assert FAMILY.layout(description, shard) == model.layout(shard)
