"""Golden tensors: what is written is read, and nothing in a file is taken on trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.probes.golden import read_golden, write_golden

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
HIDDEN = {"0.input": ROWS, "0.expected": ROWS * 2}
NAN, INF = np.float32(np.nan), np.float32(np.inf)
PACKAGE = {
    "0.in.x": ROWS.astype(np.float16),
    "0.in.ids": np.array([1, 2], np.int32),
    "0.out.y": ROWS,
}


def written(path: Path, tensors: dict[str, Any], notes: Any = None) -> Path:
    metadata = None if notes is None else {"json": json.dumps(notes)}
    save_file(tensors, path / "golden.safetensors", metadata)
    return path / "golden.safetensors"


def refused(path: Path) -> str:
    with pytest.raises(GoldenError) as caught:
        read_golden(path)
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def test_hidden_states_and_their_notes(tmp_path: Path) -> None:
    note = {
        "kind": "captured",
        "name": "facts",
        "start": 4,
        "calls": [[0, 2], [2, 1]],
        "residual": "input",
    }
    note["routed"] = [[3], [], [1, 0]]
    tensors = HIDDEN | {"1.input": ROWS, "1.expected": ROWS, "1.residual": ROWS}
    path = tmp_path / "some" / "golden.safetensors"
    write_golden(path, tensors, {"probes": [note, {"kind": "outlier", "name": "o"}], "origin": "?"})
    found = read_golden(path)
    assert found.hidden
    assert [sorted(probe) for probe in found.probes] == [
        ["expected", "input"],
        ["expected", "input", "residual"],
    ]
    assert (found.notes[0].start, found.notes[0].routed) == (4, [[3], [], [1, 0]])
    np.testing.assert_array_equal(found.probes[0]["expected"], ROWS * 2)
    assert [p.name for p in path.parent.iterdir()] == ["golden.safetensors"]


def test_a_file_of_another_tool_needs_no_notes(tmp_path: Path) -> None:
    found = read_golden(written(tmp_path, PACKAGE))
    assert not found.hidden
    assert [(note.kind, note.name) for note in found.notes] == [("golden", "golden #0")]
    assert found.probes[0]["in.x"].dtype == np.float32
    assert found.probes[0]["in.ids"].dtype == np.int32


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "holds no probe"),
        ({"x": ROWS}, "has a tensor 'x'; they are called 0.input, 0.expected"),
        ({"0.in.": ROWS}, "has a tensor '0.in.'"),
        ({"00.input": ROWS}, "has a tensor '00.input'"),
        ({"999999.input": ROWS}, "has a tensor '999999.input'"),
        ({"1.input": ROWS, "1.expected": ROWS}, "probes are not numbered 0 to 0"),
        ({"0.input": ROWS}, "probe 0 has no 0.expected"),
        ({"0.in.x": ROWS}, "probe 0 has no 0.out.NAME"),
        (HIDDEN | {"0.in.x": ROWS}, "probe 0 mixes hidden states with a package's inputs"),
        (HIDDEN | {"1.in.x": ROWS, "1.out.y": ROWS}, "has hidden states for some probes and"),
        (HIDDEN | {"0.expected": ROWS[:2]}, "0.input is [3, 2] and 0.expected [2, 2]"),
        (HIDDEN | {"0.input": ROWS[0]}, "0.input is [2] and 0.expected [3, 2]"),
        (HIDDEN | {"0.residual": ROWS[:, :1]}, "residual path of probe 0 is [3, 1], not [3, 2]"),
        (HIDDEN | {"0.input": ROWS[:0], "0.expected": ROWS[:0]}, " is empty"),
        (HIDDEN | {"0.expected": np.where(ROWS == 3, NAN, ROWS)}, "0.expected is nan at [1, 1]"),
        (HIDDEN | {"0.input": np.where(ROWS == 4, INF, ROWS)}, "0.input is inf at [2, 0]"),
        (HIDDEN | {"0.input": ROWS.astype(np.float64)}, "0.input is F64; read are F16, F32"),
        (PACKAGE | {"0.out.y": ROWS.astype(np.int32)}, "0.out.y is I32; read are F16, F32"),
        (PACKAGE | {"0.in.x": ROWS > 1}, "0.in.x is BOOL; read are F16, F32 and, as inputs, I32"),
    ],
)  # fmt: skip
def test_tensors_that_are_none(tmp_path: Path, tensors: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(written(tmp_path, tensors))


@pytest.mark.parametrize(
    ("notes", "sentence"),
    [
        ({"golden": 2}, "metadata golden: Input should be 1"),
        ({"code": "run me"}, "metadata code: Extra inputs are not permitted"),
        ([], "metadata"),
        ({"probes": [{}, {}]}, "describes 2 probes and holds 1"),
        ({"probes": [{"kind": "best"}]}, "metadata probes.0.kind: Input should be"),
        ({"probes": [{"start": -1}]}, "metadata probes.0.start: "),
        ({"probes": [{"calls": [[0, 0]]}]}, "metadata probes.0.calls.0.1: "),
        ({"probes": [{"calls": [[0, 1 << 20]]}]}, "has 3 rows, and the calls of probe 0 1048576"),
        ({"probes": [{"calls": [[0, 1], [2, 2]]}]}, "a call begins at position 2, outside the"),
        ({"probes": [{"calls": [[0, 2], [0, 1]]}]}, "0.expected [3, 2], and its calls give 1 pos"),
        ({"probes": [{"left_out": [2]}]}, "probe 0 leaves out channels that 0.expected does not"),
        ({"probes": [{"undecided": [3]}]}, "probe 0 leaves out rows that 0.expected does not"),
        ({"probes": [{"before": 1}]}, "probe 0 begins at 0, and 1 positions precede"),
        ({"probes": [{"name": "x" * 10000}]}, "metadata probes.0.name: "),
        ({"probes": [{"routed": [[1]]}]}, "probe 0 routes 1 of 3 positions"),
        ({"probes": [{"routed": [[-1]] * 3}]}, "metadata probes.0.routed.0.0: "),
        ({"outputs": [{"name": "y", "shape": [0]}]}, "metadata outputs.0.shape.0"),
    ],
)
def test_notes_that_are_none(tmp_path: Path, notes: Any, sentence: str) -> None:
    assert sentence in refused(written(tmp_path, HIDDEN, notes))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    assert refused(path) == "there are no golden tensors; record them: pytest-ane golden record."
    whole = written(tmp_path, HIDDEN).read_bytes()
    for damaged in (b"", whole[:5], whole[:-1], b"\xff" * 40, whole + b"x"):
        path.write_bytes(damaged)
        assert refused(path).startswith("no golden tensors can be read (")
        assert refused(path).endswith("); record them again: pytest-ane golden record.")
    save_file(HIDDEN, path, {"json": "[" * 100_000})
    assert "no golden tensors can be read" in refused(path)
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    assert "no golden tensors can be read" in refused(folder)


def test_what_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    write_golden(path, HIDDEN, {})
    before = path.read_bytes()
    with pytest.raises(GoldenError, match=r"golden.safetensors: 0.expected is nan at \[0, 0\]"):
        write_golden(path, HIDDEN | {"0.expected": ROWS * np.float32(np.nan)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["golden.safetensors"]
    with pytest.raises(GoldenError, match=r"cannot be written"):
        write_golden(path / "below.safetensors", HIDDEN, {})
