"""Files are written whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.atomic import write_atomically


def test_the_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for data in (b"one", b"two"):
        write_atomically(file, data)
        assert file.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_mode_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    file.chmod(0o640)
    write_atomically(file, b"new")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_failure_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
