"""The table that begins a chain, from each kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

from pytest_ane.manifest.chain import Embedding
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import open_rows
from tests.models.sources.files import write_gguf

TABLE = np.arange(192, dtype=np.float32).reshape(6, 32) / 8
IDS = [5, 0, 5]


WRITTEN: dict[str, Callable[[Path], object]] = {
    "e.npy": lambda path: np.save(path, TABLE.astype(np.float16)),
    "e.npz#rows": lambda path: np.savez(path, rows=TABLE),
    "e.safetensors#rows": lambda path: save_file({"rows": TABLE}, path),
    "e.gguf#rows": lambda path: write_gguf(path, {"rows": (TABLE, Kind.F16)}),
}


def spec(folder: Path, file: str, scale: float = 1.0) -> Embedding:
    return Embedding(file=str(folder / file), scale=scale)


@pytest.mark.parametrize("file", WRITTEN)
def test_rows_by_number(tmp_path: Path, file: str) -> None:
    WRITTEN[file](tmp_path / file.partition("#")[0])
    table = open_rows(spec(tmp_path, file, 2.0))
    assert (table.height, table.width) == (6, 32)
    rows = table.rows(IDS)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, 2 * TABLE[IDS])


@pytest.mark.parametrize("row", [-1, 6])
def test_no_such_row(tmp_path: Path, row: int) -> None:
    np.save(tmp_path / "e.npy", TABLE)
    with pytest.raises(SourceError, match=f"has rows 0 to 5, not {row}"):
        open_rows(spec(tmp_path, "e.npy")).rows([0, row])


@pytest.mark.parametrize(
    ("file", "write", "sentence"),
    [
        ("e.npy", lambda path: None, "no such file; check the embedding in shards.toml"),
        ("e.npy", lambda path: path.write_bytes(b"none"), "cannot be read"),
        ("e.npy", lambda path: np.save(path, np.zeros(3)), r"has the shape \[3\], which is no tab"),
        ("e.npy", lambda path: np.save(path, np.array([["a", "b"]] * 2)), "holds <U1, not numbers"),
        (
            "e.npy",
            lambda path: np.save(path, np.array([[{}]] * 2), allow_pickle=True),
            "Python objects",
        ),
        ("e.npz#rows", lambda path: np.savez(path, others=TABLE), "rows is not a file"),
        (
            "e.safetensors#rows",
            lambda path: save_file({"others": TABLE}, path),
            "no tensor 'rows' among its 1",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, file: str, write: Callable[[Path], object], sentence: str
) -> None:
    write(tmp_path / file.partition("#")[0])
    with pytest.raises(SourceError, match=sentence):
        open_rows(spec(tmp_path, file))


def test_a_row_that_is_not_finite(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.where(TABLE == 0, np.inf, TABLE))
    with pytest.raises(SourceError, match=r"one of the rows \[0\] is not finite"):
        open_rows(spec(tmp_path, "e.npy")).rows([0])
