"""What git tells of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.records.run import checkout
from tests.ci import repository


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a tracked file; there is a line break in its path."""
    made = tmp_path / "a\nb" / "it's"
    made.mkdir(parents=True)
    repository.git(made, "init", "--quiet")
    (made / "a").write_text("1\n")
    repository.git(made, "add", ".")
    repository.git(made, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    return made


def test_a_commit_is_clean_until_something_tracked_changes(folder: Path) -> None:
    commit, clean = checkout(folder)
    assert (len(commit), clean) == (40, True)
    (folder / "new").write_text("nobody tracks it")
    assert checkout(folder) == (commit, True)
    (folder / "a").write_text("2\n")
    assert checkout(folder) == (commit, False)


def test_what_git_cannot_tell_is_not_clean(folder: Path) -> None:
    (folder / ".git" / "index").write_text("damaged")
    commit, clean = checkout(folder)
    assert (len(commit), clean) == (40, False)


def test_no_checkout_and_none_with_a_commit(tmp_path: Path) -> None:
    assert checkout(tmp_path / "none") == ("", False)
    repository.git(tmp_path, "init", "--quiet")
    assert checkout(tmp_path) == ("", False)
