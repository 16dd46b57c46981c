"""Golden tensors as `.npz`: the same names and checks as in safetensors, and no trust in a zip."""

from __future__ import annotations

import io
import json
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.probes.golden import read_golden, write_golden
from pytest_ane.probes.npz import read_npz
from tests.probes.test_golden import HIDDEN, PACKAGE, ROWS, refused, written


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


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_golden(tmp_path / name, HIDDEN, {})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


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
        ({"0.in.x": np.array([{}], object), "0.out.y": ROWS}, "holds object, no numbers"),
        ({"0.in.x": np.zeros(2, "f4,i4"), "0.out.y": ROWS}, "no numbers"),
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "g.npz", allow_pickle=True, **arrays)
    assert sentence in refused(tmp_path / "g.npz")


def entry(header: dict[str, Any], data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    content = io.BytesIO()
    content.write(np.lib.format.magic(*version))
    text = repr(header).encode().ljust(117) + b"\n"
    content.write(len(text).to_bytes(2, "little") + text + data)
    return content.getvalue()


HEADER = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"0.in.x.npy": entry(HEADER)}, "declares 4,398,046,511,104 bytes and holds others"),
        ({"0.in.x.npy": entry(HEADER | {"shape": (-1,)})}, "no numbers"),
        ({"0.in.x.npy": entry(HEADER | {"shape": (1,)}, b"12345")}, "and holds others"),
        ({"0.in.x.npy": entry(HEADER, version=(3, 0))}, "has the format (3, 0)"),
        ({"0.in.x.npy": b"no array"}, "no golden tensors can be read"),
        ({"notes.txt": b"text"}, "'notes.txt' is no array"),
    ],
)
def test_hostile_entries(tmp_path: Path, entries: dict[str, bytes], sentence: str) -> None:
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)
    tracemalloc.start()
    assert sentence in refused(tmp_path / "g.npz")
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


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


def test_the_suffix_decides(tmp_path: Path) -> None:
    written(tmp_path, PACKAGE).rename(tmp_path / "g.npz")
    assert "no golden tensors can be read" in refused(tmp_path / "g.npz")
    with pytest.raises(GoldenError, match="there are no golden tensors"):
        read_golden(tmp_path / "none.npz")
