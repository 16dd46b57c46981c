"""Shards held against golden tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families.bert.model import BertLayout
from pytest_ane.models.families.layout import AneLayout, Rotary
from pytest_ane.probes.golden import GoldenTensors, golden_cases, read_golden, write_golden

SHARD = Shard(model="m", id="L01", family="llama", max_tokens=4, context=8)
SHORT = SHARD.model_copy(update={"max_tokens": 3, "context": 3})
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
LAYOUT = AneLayout("llama", 2, Rotary.plain(2, 100.0))


class Double:
    """A package that takes `x` and gives `y`, twice as much."""

    inputs = (Feature("x", "tensor", DType.FP16, (1, 2, 4, 1)),)
    model = SimpleNamespace(inputs=inputs, outputs=())

    def load(self, artifact: Path, function: str | None = None) -> Double:
        return self

    def predict(self, inputs: Any, state: Any = None) -> Any:
        return {"y": inputs["x"] * 2}


def golden(tmp_path: Path, tensors: dict[str, Any], **metadata: Any) -> GoldenTensors:
    write_golden(tmp_path / "g.safetensors", tensors, metadata)
    return read_golden(tmp_path / "g.safetensors")


def cases(found: GoldenTensors, shard: Shard = SHARD, layout: Any = LAYOUT) -> list[Any]:
    return golden_cases(found, shard, layout, Double(), Path("a.mlpackage"))


def test_hidden_states(tmp_path: Path) -> None:
    note = {"kind": "captured", "name": "facts", "start": 3, "residual": "input"}
    tensors = {"0.input": ROWS, "0.expected": ROWS + 1}
    (case,) = cases(golden(tmp_path, tensors, probes=[note | {"routed": [[1]] * 4}]))
    assert (case.kind, case.name, case.start, case.length) == ("captured", "facts", 3, 4)
    assert case.calls[0]["x"].shape == (1, 2, 4, 1)
    np.testing.assert_array_equal(case.expected["y"], ROWS + 1)
    np.testing.assert_array_equal(case.residual["y"], ROWS)
    assert case.routed == ((1,),) * 4


def test_states_of_the_positions_before(tmp_path: Path) -> None:
    stateful = replace(LAYOUT, rotary=Rotary.plain(2, 100.0), context=16)
    note = {"name": "window", "calls": [[6, 4]], "before": 6, "undecided": [1]}
    tensors = {"0.input": ROWS, "0.expected": ROWS + 1, "0.state.k_cache": ROWS}
    longer = SHARD.model_copy(update={"context": 16})
    (case,) = cases(golden(tmp_path, tensors, probes=[note]), longer, stateful)
    np.testing.assert_array_equal(case.states["k_cache"], ROWS)
    assert case.undecided == (1,)
    # From position 0 on everything is seen: the first call is not the sequence's start.
    assert (case.calls[0]["mask"][0, 0, 0, :7] == 0).all()


@pytest.mark.parametrize(
    ("layout", "shard", "sentence"),
    [
        (replace(LAYOUT, width=3), SHARD, "0.input has 2 channels, and m:L01 takes 3"),
        (LAYOUT, SHORT, "takes at most max-tokens = 3"),
        (AneLayout("llama", 2, Rotary.plain(2, 100.0), 3), SHORT, "context = 3"),
        (None, SHARD, "m:L01 has no family; record its own inputs and outputs"),
    ],
)  # fmt: skip
def test_another_shard_s_hidden_states(
    tmp_path: Path, layout: Any, shard: Shard, sentence: str
) -> None:
    found = golden(tmp_path, {"0.input": ROWS, "0.expected": ROWS})
    with pytest.raises(GoldenError, match=sentence):
        cases(found, shard, layout)


def test_a_package_s_inputs_and_outputs(tmp_path: Path) -> None:
    x = ROWS.T[None, :, :, None]
    outputs = [{"name": "y", "shape": [1, 2, "T", 1]}]
    (case,) = cases(golden(tmp_path, {"0.in.x": x, "0.out.y": 2 * x}, outputs=outputs))
    assert (case.kind, case.name, case.length, case.input_max) == ("golden", "golden #0", 4, 7)
    np.testing.assert_array_equal(case.expected["y"], 2 * ROWS)
    np.testing.assert_array_equal(case.rows(Double().predict(case.calls[0]))["y"], 2 * ROWS)
    (flat,) = cases(golden(tmp_path, {"0.in.x": x, "0.out.y": 2 * x}), layout=None)
    assert flat.expected["y"].shape == (1, 8)


def test_another_package_s_inputs(tmp_path: Path) -> None:
    found = golden(tmp_path, {"0.in.z": ROWS, "0.out.y": ROWS})
    with pytest.raises(GoldenError, match=r"probe 0 has inputs z, and a.mlpackage takes x"):
        cases(found)


def test_one_row_for_all_positions_is_what_pooling_gives(tmp_path: Path) -> None:
    pooling = BertLayout("bert", 2, length=4, pools=True)
    pooled = golden(tmp_path, {"0.input": ROWS[:3], "0.expected": ROWS[:1]})
    (case,) = cases(pooled, layout=pooling)
    assert case.length == 3
    assert case.rows({"y": ROWS[:1].T[None, :, :, None]})["y"].tolist() == [[0, 1]]
    with pytest.raises(GoldenError, match="has 1 positions, and m:L01 gives 3"):
        cases(pooled, layout=replace(pooling, pools=False))
    whole = golden(tmp_path, {"0.input": ROWS[:3], "0.expected": ROWS[:3]})
    (case,) = cases(whole, layout=replace(pooling, pools=False))
    # The artifact gives four rows, the last one of padding.
    assert case.rows({"y": ROWS.T[None, :, :, None]})["y"].tolist() == ROWS[:3].tolist()
    with pytest.raises(GoldenError, match="has 3 positions, and m:L01 gives 1"):
        cases(whole, layout=pooling)
