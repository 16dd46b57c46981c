"""Cases: a family's shard, and a package of which nothing is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.models.families.layout import AneLayout, Rotary
from pytest_ane.probes.cases import package_case
from pytest_ane.probes.hidden import HiddenProbe, in_steps, kept_rows


def test_a_case_of_a_family_s_shard() -> None:
    hidden = np.array([[1, -7, 3], [4, 5, 6]], np.float32)
    expected = hidden * 2
    probe = HiddenProbe("captured", "captured chat T=2", 0, ((0, 2),), hidden, expected)
    case = probe.case(AneLayout("llama", 3, Rotary.plain(2, 100.0)))
    assert (case.kind, case.name) == ("captured", "captured chat T=2")
    assert (case.length, case.input_max) == (2, 7.0)
    (inputs,) = case.calls
    assert set(inputs) == {"x", "cos", "sin", "mask"}
    assert case.expected["y"] is expected
    back = case.rows({"y": inputs["x"]})
    np.testing.assert_array_equal(back["y"], hidden)


def test_a_case_in_steps() -> None:
    hidden = np.arange(15, dtype=np.float32).reshape(5, 3)
    stateful = AneLayout("llama", 3, Rotary.plain(2, 100.0), 8)
    case = HiddenProbe("gaussian", "g", 0, in_steps(5, 2), hidden, hidden).case(stateful)
    assert [call["x"].shape[2] for call in case.calls] == [2, 2, 1]
    assert [int(call["write"].argmax()) for call in case.calls] == [0, 2, 4]
    np.testing.assert_array_equal(case.calls[2]["x"][0, :, 0, 0], hidden[4])


def test_rows_that_were_overwritten_and_channels_left_out_are_not_compared() -> None:
    hidden = np.arange(15, dtype=np.float32).reshape(5, 3)
    stateful = AneLayout("llama", 3, Rotary.plain(2, 100.0), 8)
    calls = ((0, 1), (1, 2), (1, 2))
    probe = HiddenProbe("rewrite", "r", 0, calls, hidden, hidden[[0, 3, 4]], left_out=(1,))
    case = probe.case(stateful)
    assert (case.length, case.kept) == (3, (0, 3, 4))
    np.testing.assert_array_equal(probe.sequence, case.expected["y"])
    joined = case.joined([{"y": call["x"][0, :, :, 0].T} for call in case.calls])["y"]
    np.testing.assert_array_equal(joined, case.expected["y"])
    np.testing.assert_array_equal(case.compared(joined)[:, 1], 0)
    np.testing.assert_array_equal(case.compared(joined)[:, ::2], joined[:, ::2])


def test_a_sequence_that_begins_later_does_not_see_what_is_below() -> None:
    hidden = np.ones((2, 3), np.float32)
    stateful = AneLayout("llama", 3, Rotary.plain(2, 100.0), 8)
    case = HiddenProbe("ragged", "r", 0, ((5, 1), (6, 1)), hidden, hidden).case(stateful)
    assert [np.flatnonzero(call["mask"] == 0).tolist() for call in case.calls] == [[5], [5, 6]]
    assert (case.length, case.kept) == (2, None)


@pytest.mark.parametrize("calls", [((0, 2), (3, 1)), ((2, 2), (1, 1))])
def test_calls_that_leave_a_gap_are_refused(calls: Any) -> None:
    with pytest.raises(ValueError, match="outside the sequence so far"):
        kept_rows(calls)


def test_nan_in_a_probe_is_its_largest_input() -> None:
    hidden = np.array([[1, np.nan, 3]], np.float32)
    probe = HiddenProbe("k", "n", 0, ((0, 1),), hidden, hidden)
    assert np.isnan(probe.case(AneLayout("llama", 3, Rotary.plain(2, 100.0))).input_max)


def test_a_case_of_a_package() -> None:
    inputs = {"x": np.array([[0.5, -2.0]], np.float16), "ids": np.array([900], np.int32)}
    case = package_case("gaussian", "gaussian #0", (inputs,), (), length=2)
    assert (case.length, case.input_max, dict(case.expected)) == (2, 2.0, {})
    assert case.calls == (inputs,)


def test_a_package_without_floating_point_inputs() -> None:
    assert (
        package_case("k", "n", ({"ids": np.array([900], np.int32)},), (), length=1).input_max == 0.0
    )
    assert package_case("k", "n", ({},), (), length=1).input_max == 0.0


def test_outputs_of_a_package_are_one_row_each() -> None:
    outputs = {"y": np.ones((1, 2, 3), np.float16), "n": np.array(4, np.int32)}
    found = package_case("k", "n", ({},), (outputs,)).expected
    assert {name: rows.shape for name, rows in found.items()} == {"y": (1, 6), "n": (1, 16)}
    assert all(rows.dtype == np.float32 for rows in found.values())
