"""Golden tensors: what is written is read, and nothing in a file is taken on trust."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.bert import BertLayout
from pytest_ane.probes.golden import (
    GoldenTensors,
    golden_cases,
    read_golden,
    read_npz,
    write_golden,
)
from tests.models.families.rotary import plain_rotary

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


def test_what_is_written_is_read_as_from_safetensors(tmp_path: Path) -> None:
    notes: dict[str, Any] = {"probes": [{"kind": "captured", "name": "facts", "start": 4}]}
    for name in ("g.npz", "g.safetensors"):
        write_golden(tmp_path / name, HIDDEN, notes)
    npz, tensors = (read_golden(tmp_path / name) for name in ("g.npz", "g.safetensors"))
    assert npz.notes == tensors.notes
    assert npz.hidden == tensors.hidden
    for mine, theirs in zip(npz.probes, tensors.probes, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_of_numpy(tmp_path: Path, save: Callable[..., None]) -> None:
    """Columns first and the other byte order, which numpy writes as they are, are read."""
    arrays = PACKAGE | {"0.out.y": np.asfortranarray(ROWS.astype(">f4"))}
    save(tmp_path / "g.npz", **arrays, json=json.dumps({"probes": [{"name": "own"}]}))
    found = read_golden(tmp_path / "g.npz")
    assert [note.name for note in found.notes] == ["own"]
    np.testing.assert_array_equal(found.probes[0]["out.y"], ROWS)
    assert found.probes[0]["out.y"].dtype == found.probes[0]["in.x"].dtype == np.float32
    assert found.probes[0]["in.ids"].tolist() == [1, 2]
    save(tmp_path / "g.npz", **arrays)
    assert [note.name for note in read_golden(tmp_path / "g.npz").notes] == ["golden #0"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"0.in.x": ROWS, "0.out.y": ROWS.astype(np.float64)}, "0.out.y is float64; read are F16"),
        ({"0.in.x": ROWS.astype(int), "0.out.y": ROWS}, "is int64; read are F16, F32 and, as inp"),
        (PACKAGE | {"json": ROWS}, "json is no text"),
        (PACKAGE | {"json": np.array("{")}, "no golden tensors can be read"),
        (PACKAGE | {"json": np.array('{"origin": 3}')}, "metadata origin: "),
        (PACKAGE | {"x": ROWS}, "has a tensor 'x'"),
        ({"0.in.x": np.array([{}], object), "0.out.y": ROWS}, "Object arrays cannot be loaded"),
        ({"0.in.x": np.zeros(2, "f4,i4"), "0.out.y": ROWS}, "0.in.x is void64; read are F16"),
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "g.npz", allow_pickle=True, **arrays)
    assert sentence in refused(tmp_path / "g.npz")


def entry(header: dict[str, Any], data: bytes = b"") -> bytes:
    content = io.BytesIO()
    content.write(np.lib.format.magic(1, 0))
    text = repr(header).encode().ljust(117) + b"\n"
    content.write(len(text).to_bytes(2, "little") + text + data)
    return content.getvalue()


HEADER = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"0.in.x.npy": entry(HEADER)}, "no golden tensors can be read"),
        ({"0.in.x.npy": entry(HEADER | {"shape": (-1,)})}, "no golden tensors can be read"),
        ({"0.in.x.npy": b"no array"}, "no golden tensors can be read"),
        ({"notes.txt": b"text"}, "'notes.txt' is no array"),
    ],
)
def test_hostile_entries(tmp_path: Path, entries: dict[str, bytes], sentence: str) -> None:
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)
    assert sentence in refused(tmp_path / "g.npz")


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    zeros = entry(HEADER | {"shape": (1 << 20,)}, bytes(4 << 20))
    with zipfile.ZipFile(tmp_path / "g.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for i in range(4):
            file.writestr(f"{i}.in.x.npy", zeros)
    assert (tmp_path / "g.npz").stat().st_size < 1 << 16
    with pytest.raises(ValueError, match=r"4 arrays of 16,77\d,\d+ bytes are too many"):
        list(read_npz(tmp_path / "g.npz", 8 << 20))


def test_a_name_that_comes_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as file:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file.writestr("0.in.x.npy", entry(HEADER | {"shape": (1,)}, b"1234"))
    assert "two arrays have one name" in refused(tmp_path / "g.npz")


@pytest.mark.parametrize("length", [0, 3, 100, -1])
def test_a_cut_file_is_one_sentence(tmp_path: Path, length: int) -> None:
    write_golden(tmp_path / "g.npz", HIDDEN, {})
    data = (tmp_path / "g.npz").read_bytes()
    (tmp_path / "g.npz").write_bytes(data[:length])
    assert "no golden tensors can be read" in refused(tmp_path / "g.npz")


SHARD = Shard(model="m", id="L01", family="llama", max_tokens=4, context=8)
SHORT = SHARD.model_copy(update={"max_tokens": 3, "context": 3})
CASE_ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
LAYOUT = AneLayout("llama", 2, plain_rotary(2, 100.0))


class Double:
    """A package that takes `x` and gives `y`, twice as much."""

    inputs = (Feature("x", "tensor", DType.FP16, (1, 2, 4, 1)),)
    model = SimpleNamespace(inputs=inputs, outputs=(), states=())

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
    tensors = {"0.input": CASE_ROWS, "0.expected": CASE_ROWS + 1}
    (case,) = cases(golden(tmp_path, tensors, probes=[note | {"routed": [[1]] * 4}]))
    assert (case.kind, case.name, case.start, case.length) == ("captured", "facts", 3, 4)
    assert case.calls[0]["x"].shape == (1, 2, 4, 1)
    np.testing.assert_array_equal(case.expected["y"], CASE_ROWS + 1)
    np.testing.assert_array_equal(case.residual["y"], CASE_ROWS)
    assert case.routed == ((1,),) * 4


def test_states_of_the_positions_before(tmp_path: Path) -> None:
    stateful = replace(LAYOUT, rotary=plain_rotary(2, 100.0), context=16)
    note = {"name": "window", "calls": [[6, 4]], "before": 6, "undecided": [1]}
    tensors = {"0.input": CASE_ROWS, "0.expected": CASE_ROWS + 1, "0.state.k_cache": CASE_ROWS}
    longer = SHARD.model_copy(update={"context": 16})
    (case,) = cases(golden(tmp_path, tensors, probes=[note]), longer, stateful)
    np.testing.assert_array_equal(case.states["k_cache"], CASE_ROWS)
    assert case.undecided == (1,)
    # From position 0 on everything is seen: the first call is not the sequence's start.
    assert (case.calls[0]["mask"][0, 0, 0, :7] == 0).all()


@pytest.mark.parametrize(
    ("layout", "shard", "sentence"),
    [
        (replace(LAYOUT, width=3), SHARD, "0.input has 2 channels, and m:L01 takes 3"),
        (LAYOUT, SHORT, "takes at most max-tokens = 3"),
        (AneLayout("llama", 2, plain_rotary(2, 100.0), 3), SHORT, "context = 3"),
        (None, SHARD, "m:L01 has no family; record its own inputs and outputs"),
    ],
)  # fmt: skip
def test_another_shard_s_hidden_states(
    tmp_path: Path, layout: Any, shard: Shard, sentence: str
) -> None:
    found = golden(tmp_path, {"0.input": CASE_ROWS, "0.expected": CASE_ROWS})
    with pytest.raises(GoldenError, match=sentence):
        cases(found, shard, layout)


def test_a_package_s_inputs_and_outputs(tmp_path: Path) -> None:
    x = CASE_ROWS.T[None, :, :, None]
    outputs = [{"name": "y", "shape": [1, 2, "T", 1]}]
    (case,) = cases(golden(tmp_path, {"0.in.x": x, "0.out.y": 2 * x}, outputs=outputs))
    assert (case.kind, case.name, case.length, case.input_max) == ("golden", "golden #0", 4, 7)
    np.testing.assert_array_equal(case.expected["y"], 2 * CASE_ROWS)
    np.testing.assert_array_equal(case.rows(Double().predict(case.calls[0]))["y"], 2 * CASE_ROWS)
    (flat,) = cases(golden(tmp_path, {"0.in.x": x, "0.out.y": 2 * x}), layout=None)
    assert flat.expected["y"].shape == (1, 8)


def test_another_package_s_inputs(tmp_path: Path) -> None:
    found = golden(tmp_path, {"0.in.z": CASE_ROWS, "0.out.y": CASE_ROWS})
    with pytest.raises(GoldenError, match=r"probe 0 has inputs z, and a.mlpackage takes x"):
        cases(found)


def test_one_row_for_all_positions_is_what_pooling_gives(tmp_path: Path) -> None:
    pooling = BertLayout("bert", 2, length=4, pools=True)
    pooled = golden(tmp_path, {"0.input": CASE_ROWS[:3], "0.expected": CASE_ROWS[:1]})
    (case,) = cases(pooled, layout=pooling)
    assert case.length == 3
    assert case.rows({"y": CASE_ROWS[:1].T[None, :, :, None]})["y"].tolist() == [[0, 1]]
    with pytest.raises(GoldenError, match="has 1 positions, and m:L01 gives 3"):
        cases(pooled, layout=replace(pooling, pools=False))
    whole = golden(tmp_path, {"0.input": CASE_ROWS[:3], "0.expected": CASE_ROWS[:3]})
    (case,) = cases(whole, layout=replace(pooling, pools=False))
    # The artifact gives four rows, the last one of padding.
    assert case.rows({"y": CASE_ROWS.T[None, :, :, None]})["y"].tolist() == CASE_ROWS[:3].tolist()
    with pytest.raises(GoldenError, match="has 3 positions, and m:L01 gives 1"):
        cases(whole, layout=pooling)
