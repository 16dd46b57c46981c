"""Files of write-ups: numbers over branches and worktrees, heads, parts, slugs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.tools._writeup_data import (
    Head,
    WriteUp,
    collisions,
    digest_of,
    find,
    next_number,
    numbering,
    part,
    paths,
    read,
    relative,
    renumber,
    slug,
    unfinished,
)
from tests.ci import repository

HEAD = Head(1, "0" * 64, "2026-11-24T16:00:00Z", "../shards.toml", "1" * 64, "L01")


def page(folder: Path, stem: str, body: str = "", run: str = "") -> WriteUp:
    number = int(stem.partition("-")[0])
    head = Head(**{**vars(HEAD), "number": number, "run_sha256": run})
    writeup = WriteUp(folder / f"{stem}.md", head, body)
    folder.mkdir(exist_ok=True)
    writeup.save()
    return writeup


def git(folder: Path, *arguments: str) -> None:
    repository.git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    page(folder / "experiments", "001-first")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_numbers_outside_of_git(tmp_path: Path) -> None:
    folder = tmp_path / "experiments"
    assert next_number(folder) == 1
    page(folder, "002-b")
    (folder / "007-left.json").write_text("")
    (folder / "20261124-notes.md").write_text("")
    assert next_number(folder) == 8


def test_numbers_of_other_branches_are_taken(checkout: Path) -> None:
    git(checkout, "switch", "-q", "-c", "other")
    page(checkout / "experiments", "002-second")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "second")
    git(checkout, "switch", "-q", "main")
    assert [path.stem for path in paths(checkout / "experiments")] == ["001-first"]
    assert next_number(checkout / "experiments") == 3


def test_numbers_of_remote_branches_and_of_clones_are_taken(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(checkout), "clone")
    git(checkout, "switch", "-q", "-c", "other")
    page(checkout / "experiments", "005-fifth")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "fifth")
    folder = tmp_path / "clone" / "experiments"
    assert next_number(folder) == 2
    git(tmp_path / "clone", "fetch", "-q")
    assert next_number(folder) == 6


def test_numbers_of_worktrees_are_taken_before_they_are_committed(
    checkout: Path, tmp_path: Path
) -> None:
    git(checkout, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    page(tmp_path / "tree" / "experiments", "004-fourth")
    assert next_number(checkout / "experiments") == 5
    assert next_number(tmp_path / "tree" / "experiments") == 5


def test_the_folder_may_be_a_link_and_in_a_subfolder(checkout: Path, tmp_path: Path) -> None:
    inner = checkout / "a b" / "experiments"
    inner.parent.mkdir()
    page(inner, "009-ninth")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "ninth")
    (inner / "009-ninth.md").unlink()
    (tmp_path / "link").symlink_to(inner)
    assert next_number(tmp_path / "link") == 10
    (checkout / "a b" / "shards.toml").touch()
    assert relative(checkout / "a b" / "shards.toml", tmp_path / "link") == "../shards.toml"


def test_an_unborn_repository_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert next_number(tmp_path / "a" / "b") == 1
    assert paths(tmp_path / "a") == []


def test_two_of_one_number_and_a_new_one_for_one_of_them(checkout: Path) -> None:
    folder = checkout / "experiments"
    text = "\n# 001: second\n\n[run](001-second.json), 001-second-more, ![a](001-second.kl.svg)\n"
    second = page(folder, "001-second", text)
    page(folder, "003-third", "since [001-second](001-second.md)\n")
    for name in ("001-second.json", "001-second.kl.svg", "001-second-more.json"):
        (folder / name).write_text("{}")
    assert collisions(folder) == [("001-first", "001-second")]
    moved = renumber(second)
    assert moved.stem == "004-second"
    assert read(moved.path) == moved
    assert moved.head.number == 4
    expected = text.replace("# 001", "# 004").replace("(001-second", "(004-second")
    assert moved.body == expected, "another's name begins alike, and is kept"
    assert read(folder / "003-third.md").body == "since [004-second](004-second.md)\n"
    assert {path.name for path in folder.iterdir()} == {
        "001-first.md", "003-third.md", "004-second.md", "004-second.json", "004-second.kl.svg",
        "001-second-more.json",
    }  # fmt: skip
    assert collisions(folder) == []


def test_a_new_number_keeps_apart_what_a_person_wrote(tmp_path: Path) -> None:
    def body(stem: str) -> str:
        links, mine = (part(name, f"[run]({stem}.json)") for name in ("references", "next"))
        mine = mine.replace("[run]", "[my run]")
        return f"\n{part('intent', 'unlike 001-a')}\n{links}\n{mine}\n"

    page(tmp_path, "002-b", body("001-a"))
    moved = renumber(page(tmp_path, "001-a", body("001-a")))
    for writeup in (moved, read(tmp_path / "002-b.md")):
        assert writeup.edited == ["next"]
        assert writeup.parts == {
            "intent": "unlike 001-a",
            "references": "[run](003-a.json)",
            "next": "[my run](003-a.json)",
        }


def test_one_process_gives_numbers_in_all_worktrees(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    repository.git(checkout, "worktree", "add", "-q", "-b", "other", str(other))
    lock = checkout / ".git" / "pytest-ane-writeups.lock"
    for tree in (checkout, other):
        with numbering(tree / "experiments"), pytest.raises(Timeout):
            FileLock(lock, timeout=0).acquire()
        assert repository.git(tree, "status", "--porcelain") == ""
    with FileLock(lock, timeout=0):
        pass


def test_outside_of_git_the_lock_is_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, temporary = tmp_path / "experiments", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with numbering(folder):
        (lock,) = temporary.iterdir()
        with pytest.raises(Timeout):
            FileLock(lock, timeout=0).acquire()
    assert list(folder.iterdir()) == []


def test_find(tmp_path: Path) -> None:
    page(tmp_path, "001-a", run="x")
    page(tmp_path, "002-b")
    page(tmp_path, "012-b", run="x")
    for name in ("1", "001", "a", "001-a", str(tmp_path / "001-a.md"), "001-a.md"):
        assert find(tmp_path, name) == tmp_path / "001-a.md"
    assert unfinished(tmp_path) == tmp_path / "002-b.md"
    with pytest.raises(ReportError, match="b names 2 write-ups; name one: 002-b, 012-b"):
        find(tmp_path, "b")
    with pytest.raises(ReportError, match="has no write-up 7; it has 001-a, 002-b, 012-b"):
        find(tmp_path, "7")
    with pytest.raises(ReportError, match=r"README\.md is no write-up's name"):
        find(tmp_path, "README.md")
    (tmp_path / "002-b.md").unlink()
    with pytest.raises(ReportError, match="only finished write-ups; name one"):
        unfinished(tmp_path)
    with pytest.raises(ReportError, match="no write-up; begin one with: pytest-ane writeup new"):
        unfinished(tmp_path / "none")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("number: 1", "number: one", ":2: 'number: one' is not a line of a write-up's head"),
        ("number: 1", 'number: "1"', ":2: number: input should be a valid integer"),
        ("clean: false", "clean: 3", ":9: clean: input should be a valid boolean"),
        ("clean: false", "", ":9: '' is not a line"),
        ("clean: false", "clean: [[[", ":9: 'clean: [[[' is not a line"),
        ("clean: false", "color: 3", ":9: 'color: 3' is not a line"),
        ("clean: false", "number: 3", ":9: 'number: 3' is not a line"),
        ('shards: "L01"\n', "", ":1: shards: field required"),
        ("---\n", "+++\n", ":1: has no head between two lines '---'"),
        ("<!-- end -->", "", ":14: this mark is damaged, or no line '<!-- end -->' follows"),
        ("writeup: result ", "writeup: result x", ":14: this mark is damaged, or no line"),
    ],
)
def test_a_damaged_page_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    writeup = page(tmp_path, "001-a", f"\n\n{part('result', 'x')}\n")
    writeup.path.write_text(writeup.path.read_text().replace(old, new))
    with pytest.raises(ReportError) as caught:
        read(writeup.path)
    assert str(caught.value).startswith(f"{writeup.path}{says}")
    assert "\n" not in str(caught.value)


def test_pages_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"001-a\.md: no such file or directory"):
        read(tmp_path / "001-a.md")
    (tmp_path / "001-a.md").write_bytes(b"---\n\xff")
    with pytest.raises(ReportError, match=r"001-a\.md:2: not UTF-8 text"):
        read(tmp_path / "001-a.md")
    (tmp_path / "file").touch()
    says = r"file cannot hold write-ups \(file exists\); name another folder with --folder"
    with pytest.raises(ReportError, match=says), numbering(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4-bit palettes on ZAYA L01", "4-bit-palettes-on-zaya-l01"),
        ("4-Bit-Paletten für ZAYA: größer?", "4-bit-paletten-fur-zaya-grosser"),
        ("量子化", "experiment"),
        ("../../etc/passwd\n+++", "etc-passwd"),
        ("x" * 100, "x" * 48),
        ("word " * 40, "word-word-word-word-word-word-word-word-word"),
    ],
)
def test_slugs(text: str, name: str) -> None:
    assert slug(text) == name


@given(st.text())
def test_any_slug_is_a_file_name(text: str) -> None:
    made = slug(text)
    assert made.replace("-", "a").isalnum()
    assert made.isascii()
    assert made == made.lower()
    assert 0 < len(made) <= 48


@given(mine=st.text(st.characters(codec="utf-8", exclude_characters="\r<")), text=st.text("ab\n"))
def test_parts_change_and_all_else_stays(mine: str, text: str) -> None:
    writeup = WriteUp(Path("001-a.md"), HEAD, f"{mine}\n{part('result', 'x')}\n{mine}")
    changed = writeup.with_parts({"result": text, "setup": "nothing has marks for it"})
    assert changed.parts == {"result": text.strip()}
    assert changed.body == f"{mine}\n{part('result', text)}\n{mine}"
    assert changed.with_parts({"result": "x"}) == writeup


def test_words_between_marks_are_kept_below_them() -> None:
    body = f"\n{part('result', 'x')}\n\nbelow\n".replace("\nx\n", "\nx\n\nmine\n")
    writeup = WriteUp(Path("001-a.md"), HEAD, body)
    assert writeup.edited == ["result"]
    changed = writeup.with_parts({"result": "y"})
    assert changed.body == f"\n{part('result', 'y')}\n\nx\n\nmine\n\nbelow\n"
    assert changed.edited == []
    assert changed.with_parts({"result": "y"}) == changed


def test_a_page_comes_back_as_it_was_written(tmp_path: Path) -> None:
    writeup = page(
        tmp_path, "001-a", f"\n## Intent\n\n{part('intent', 'why')}\n\nmine\n\n## Next\n"
    )
    assert read(writeup.path) == writeup
    assert writeup.sections == {"Intent": "why\n\nmine", "Next": ""}
    assert digest_of(" why\n") == digest_of("why")
    windows = writeup.path.read_bytes().replace(b"\n", b"\r\n")
    writeup.path.write_bytes(b"\xef\xbb\xbf" + windows)
    assert read(writeup.path) == writeup
