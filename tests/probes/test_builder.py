"""Cases of a builder's shards: probes by port and position, the reference, recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.make import Cache
from pytest_ane.manifest import Input, Probes, Shard
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.models.families import Conversion, Port
from pytest_ane.probes.builder import builder_cases, record_builder

X, Y = Port("x", (1, 3, "T", 1)), Port("y", (1, 2, "T", 1))
SHARD = Shard(model="m", id="a", max_tokens=5, probes=Probes(kinds=("gaussian", "unit-norm")))


class Scale(torch.nn.Module):
    """Two channels of the input, times a gain, in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float16))

    def forward(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x[:, :2] * gain * self.weight


def conversion(**changes: Any) -> Conversion:
    fields = {"module": Scale(), "inputs": (X, Port("gain", (1, 1, 1, 1))), "outputs": (Y,)}
    return Conversion(**{**fields, **changes})


def cases(tmp_path: Path, made: Conversion | None = None, shard: Shard = SHARD) -> Any:
    folder = record_builder(Cache(tmp_path), {"id": 1}, shard, lambda: made or conversion())
    return builder_cases(folder)


def test_every_length_of_every_kind_and_every_port(tmp_path: Path) -> None:
    found = cases(tmp_path)
    assert [case.name for case in found] == [
        f"{kind} T={length} #{number}"
        for kind in ("gaussian", "unit-norm")
        for length in (1, 2, 3, 4, 5)
        for number in ((0, 1) if length in (1, 5) else (0,))
    ]
    for case in found:
        (inputs,) = case.calls
        assert {k: v.shape for k, v in inputs.items()} == {
            "x": (1, 3, case.length, 1),
            "gain": (1, 1, 1, 1),
        }
        assert case.input_max == max(np.abs(x).max() for x in inputs.values())
        if case.kind == "gaussian":
            assert np.mean(inputs["x"] ** 2) == pytest.approx(1)
        else:
            np.testing.assert_allclose(np.linalg.norm(inputs["x"], axis=1), 1, rtol=1e-6)


def test_the_module_in_float32_is_the_reference_by_position(tmp_path: Path) -> None:
    for case in cases(tmp_path):
        (inputs,) = case.calls
        expected = inputs["x"][0, :2, :, 0].T * inputs["gain"].item() * np.float32(np.float16(0.1))
        assert case.expected["y"].shape == (case.length, 2)
        np.testing.assert_allclose(case.expected["y"], expected, rtol=1e-6)
        np.testing.assert_array_equal(
            case.rows({"y": case.expected["y"].T[None, :, :, None]})["y"], case.expected["y"]
        )


class Sum(torch.nn.Module):
    """The sum of all positions so far, which its buffer keeps."""

    total: torch.Tensor

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("total", torch.ones(1, 2, 1, 1))

    def forward(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        before = self.total if self.reads else 0
        self.total[:] = before + x[:, :2].sum(dim=2, keepdim=True)
        return x[:, :2] * 0 + self.total


@pytest.mark.parametrize("reads", [True, False])
def test_states_are_carried_from_call_to_call_and_start_at_zero(
    tmp_path: Path, reads: bool
) -> None:
    module = Sum(reads=reads)
    states = (Port("total", (1, 2, 1, 1)),)
    *some, long = cases(tmp_path, conversion(module=module, states=states))
    assert (len(long.calls), long.name) == (40, "sequence of 40 calls")
    for case in some:
        sums = np.array([call["x"][0, :2, :, 0].sum(axis=1) for call in case.calls])
        assert len(case.calls) == 4
        last = case.expected["y"][-1]
        np.testing.assert_allclose(last, sums.sum(axis=0) if reads else sums[-1], atol=1e-5)
        assert dict(case.carried) == {"total": reads}
    assert module.total.flatten().tolist() == [1, 1]


class Slots(torch.nn.Module):
    """The sum of rows that are kept at their positions."""

    rows: torch.Tensor

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, slots, 3))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at = int(position)
        self.rows[:, at : at + x.shape[1]] = x
        return self.rows.sum(1, keepdim=True)


@pytest.mark.parametrize(("slots", "filled"), [(8, False), (64, True)])
def test_positions_reach_every_slot_of_a_state_and_none_beyond(
    tmp_path: Path, slots: int, filled: bool
) -> None:
    inputs = {"position": Input(kind="positions")}
    shard = SHARD.model_copy(update={"inputs": inputs})
    made = conversion(
        module=Slots(slots),
        inputs=(Port("x", (1, 1, 3)), Port("position", (1,))),
        outputs=(Port("y", (1, 1, 3)),),
        states=(Port("rows", (1, slots, 3)),),
    )
    found = cases(tmp_path, made, shard)
    called = {at for case in found for at, _ in case.spans}
    assert max(called) == slots - 1
    assert called == {*range(slots)} or filled
    assert {tuple(case.slots.items()) for case in found} == {(("rows", slots),)}
    assert any("rows" in case.states for case in found) == filled
    for case in found:
        rows = np.zeros((slots, 3)) + case.states.get("rows", 0)
        for i, ((at, _), call) in enumerate(zip(case.spans, case.calls, strict=True)):
            rows[..., at, :] = call["x"]
            np.testing.assert_allclose(case.expected["y"][i], rows.sum(-2).ravel(), atol=1e-4)


def test_another_reference_and_several_outputs(tmp_path: Path) -> None:
    pair = Port("pair", (1, "T", "T"))
    made = conversion(
        outputs=(Y, pair),
        reference=lambda x, gain: (x[:, :2], torch.ones(1, x.shape[2], x.shape[2])),
    )
    case = cases(tmp_path, made)[-1]
    assert {name: rows.shape for name, rows in case.expected.items()} == {
        "y": (5, 2),
        "pair": (1, 25),
    }


def test_the_module_itself_is_no_second_author(tmp_path: Path) -> None:
    module = Scale()
    for name, reference, same in (
        ("none", None, True),
        ("itself", module, True),
        ("another", lambda x, gain: x[:, :2] * gain * 0.1, False),
    ):
        made = conversion(module=module.float(), reference=reference)
        assert {case.same_module for case in cases(tmp_path / name, made)} == {same}


def test_probes_are_the_same_every_time_and_recorded(tmp_path: Path) -> None:
    first, warm = cases(tmp_path / "a"), None

    def refuse() -> Conversion:
        raise AssertionError("asked again")

    warm = builder_cases(record_builder(Cache(tmp_path / "a"), {"id": 1}, SHARD, refuse))
    for other in (warm, cases(tmp_path / "b")):
        for one, two in zip(first, other, strict=True):
            np.testing.assert_array_equal(one.calls[0]["x"], two.calls[0]["x"])
            np.testing.assert_array_equal(one.expected["y"], two.expected["y"])
    with pytest.raises(AssertionError, match="asked again"):
        record_builder(Cache(tmp_path / "a"), {"id": 2}, SHARD, refuse)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"outputs": (X,)},
            "m:a: at T = 1 its reference gives [1, 2, 1, 1], and its output ports say "
            "[1, 3, 1, 1].",
        ),
        (
            {"outputs": (Y, X)},
            "m:a: at T = 1 its reference gives [1, 2, 1, 1], and its output ports say "
            "[1, 2, 1, 1], [1, 3, 1, 1].",
        ),
        (
            {"reference": lambda x: x},
            "m:a: its float32 reference failed: TypeError: "
            "test_what_a_reference_can_get_wrong.<lambda>() takes 1 positional argument but 2 were "
            "given.",
        ),
    ],
)
def test_what_a_reference_can_get_wrong(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError) as error:
        cases(tmp_path, conversion(**changes))
    assert str(error.value) == message.replace("test_what_a_reference_can_get_wrong.", "")


def test_inputs_of_the_manifest_are_drawn_from_call_to_call(tmp_path: Path) -> None:
    inputs = {"gain": Input(kind="positions"), "x": Input(kind="one-hot", axis=1)}
    shard = SHARD.model_copy(update={"inputs": inputs})
    folder = record_builder(Cache(tmp_path), {"id": 1}, shard, conversion)
    found = builder_cases(folder, inputs)
    longest = found[-1]
    assert longest.calls[0]["x"][0, :, :, 0].argmax(axis=0).tolist() == [0, 1, 2, 0, 1]
    assert longest.calls[0]["gain"].item() == 0
    assert {name: d.source for name, d in longest.domains.items()} == dict.fromkeys(
        inputs, "manifest"
    )
    # A recording without them is another one.
    assert record_builder(Cache(tmp_path), {"id": 1}, SHARD, conversion) != folder
