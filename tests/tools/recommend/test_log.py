"""The log: what was measured is found again, whatever became of the process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.tools._recommend import Log


def test_what_was_put_is_there_again(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "log.jsonl"
    log = Log(file, {"model": 1})
    log.put("alone", ["L00", "q*"], {"kl": 0.5})
    assert log.get("alone", ["L00", "q*"]) == {"kl": 0.5}
    again = Log(file, {"model": 1})
    assert (len(again), again.get("alone", ["L00", "q*"])) == (1, {"kl": 0.5})
    assert again.get("blame", ["L00", "q*"]) is None


def test_what_is_not_finite_becomes_text(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 1)
    log.put("alone", "L00", {"kl": math.nan, "all": [{"a": math.inf}, 1.5]})
    assert log.get("alone", "L00") == {"kl": "NaN", "all": [{"a": "Infinity"}, 1.5]}
    assert len(Log(tmp_path / "log", 1)) == 1


def test_another_context_has_its_own_numbers(tmp_path: Path) -> None:
    Log(tmp_path / "log", "one").put("alone", "L00", {"kl": 0.5})
    other = Log(tmp_path / "log", "other")
    assert other.get("alone", "L00") is None
    other.put("alone", "L00", {"kl": 0.7})
    assert Log(tmp_path / "log", "one").get("alone", "L00") == {"kl": 0.5}


JUNK = [b"\xff\xfe", b"[]", b"null", b"{}", b'{"context": 1}', b"[" * 5000]


def test_a_line_cut_short_costs_that_line_only(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = Log(file, 1)
    log.put("alone", "L00", {"kl": 0.5})
    log.put("alone", "L01", {"kl": 0.6})
    file.write_bytes(file.read_bytes()[:-9])
    again = Log(file, 1)
    assert again.get("alone", "L00") == {"kl": 0.5}
    assert again.get("alone", "L01") is None
    again.put("alone", "L02", {"kl": 0.7})
    assert Log(file, 1).get("alone", "L02") == {"kl": 0.7}


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe", b"[]", b"null", b"{}", b'{"context": 1}', b"[" * 5000]
)
def test_junk_is_passed_over(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(junk)
    assert len(Log(tmp_path / "log", 1)) == 0


def test_lines_are_for_people_too(tmp_path: Path) -> None:
    Log(tmp_path / "log", 1).put("alone", ["L00", "q*"], {"kl": 0.5})
    entry = json.loads((tmp_path / "log").read_text())
    assert (entry["kind"], entry["of"], entry["found"]) == ("alone", ["L00", "q*"], {"kl": 0.5})


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"cannot be read: Is a directory; choose another with"):
        Log(tmp_path, 1)
