"""Temporary files of a build."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pytest_ane.make.scratch import scratch, temporary_files_in, temporary_folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_they_are_in_a_folder_that_goes(tmp_path: Path) -> None:
    with scratch("name"):
        (folder,) = tmp_path.glob("name-*")
        assert Path(tempfile.mkdtemp()).parent == folder == Path(os.environ["TMPDIR"])
        assert folder.parent == tmp_path == temporary_folder()
    assert list(tmp_path.iterdir()) == []
    assert temporary_folder() == tmp_path


def test_it_goes_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), scratch("name"):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)


def test_one_within_another_knows_the_outermost(tmp_path: Path) -> None:
    with scratch("outer"), scratch("inner"):
        assert temporary_folder() == tmp_path
        assert Path(tempfile.gettempdir()).parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_was_left_under_the_name_goes_first(tmp_path: Path) -> None:
    left = tmp_path / "name-a_0bcdef"
    others = [tmp_path / name for name in ("other-a_0bcdef", "name-thesis", "name-a_0bcdef-copy")]
    for folder in (left, *others):
        folder.mkdir()
    with scratch("name"):
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("variable", [None, "/before"])
def test_the_variable_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if variable:
        monkeypatch.setenv("TMPDIR", variable)
    with temporary_files_in(tmp_path):
        assert os.environ["TMPDIR"] == str(tmp_path)
    assert os.environ.get("TMPDIR") == variable
