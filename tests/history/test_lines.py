"""Writing a memory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_ane.history.lines import History
from pytest_ane.mlprogram.errors import HistoryError
from tests.history.records import line, write


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    def writes(run: int) -> None:
        write(tmp_path, *(line(run, {f"x{i}": float(i)}) for i in range(40)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writes, range(4)))
    lines = [json.loads(text) for text in (tmp_path / "mini.jsonl").read_bytes().splitlines()]
    assert len(lines) == 160
    for run in range(4):
        own = [one for one in lines if one["run"] == f"{run:032x}"]
        assert [[*one["figures"]] for one in own] == [[f"x{i}"] for i in range(40)]


def test_half_a_line_is_closed(tmp_path: Path) -> None:
    (tmp_path / "mini.jsonl").write_bytes(b'{"format":1,"ga')
    write(tmp_path, line(0, {"x": 1.0}), line(1, {"x": 1.0}))
    half, *whole = (tmp_path / "mini.jsonl").read_bytes().splitlines()
    assert half == b'{"format":1,"ga'
    assert [json.loads(text)["figures"] for text in whole] == [{"x": 1.0}] * 2


def test_outside_of_git_no_file_is_for_git(tmp_path: Path) -> None:
    write(tmp_path, line(0, {"x": 1.0}))
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "mini.jsonl"}


def test_a_device_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "mini.jsonl").symlink_to("/dev/null")
    with pytest.raises(HistoryError, match=r"cannot be written \(it is no regular file\)"):
        History(tmp_path).append(line(0, {"x": 1.0}))
