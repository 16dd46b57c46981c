"""Files of write-ups: numbers, heads, sections, slugs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.report.writeups import (
    SECTIONS,
    Head,
    WriteUp,
    find,
    next_file,
    paths,
    read,
    relative,
    slug,
    unfinished,
    writeups,
)

HEAD = Head("why", "2026-11-24T16:00:00Z", "../shards.toml", "L01")


def page(folder: Path, stem: str, body: str = "", run: str = "") -> WriteUp:
    writeup = WriteUp(folder / f"{stem}.md", replace(HEAD, run=run), body)
    writeup.save()
    return writeup


def test_a_number_is_one_above_all_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "experiments"
    assert next_file(folder, "A b") == folder / "001-a-b.md"
    page(folder, "009-b")
    (folder / "20261124-notes.md").write_text("")
    (folder / "README.md").write_text("")
    assert next_file(folder, "c").name == "010-c.md"
    assert [path.name for path in paths(folder)] == ["009-b.md"]


def test_the_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "a b" / "experiments").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a b" / "experiments")
    assert relative(tmp_path / "a b" / "shards.toml", tmp_path / "link") == "../shards.toml"


def test_find(tmp_path: Path) -> None:
    page(tmp_path, "001-a", run="x")
    page(tmp_path, "002-b")
    page(tmp_path, "012-b", run="x")
    for name in ("1", "001", "a", "001-a", str(tmp_path / "001-a.md"), "001-a.md"):
        assert find(tmp_path, name) == tmp_path / "001-a.md"
    assert unfinished(tmp_path) == tmp_path / "002-b.md"
    for name, sentence in {
        "b": "has 2 write-ups b; name one of: 012-b, 002-b",
        "7": "has no write-ups 7; name one of: 012-b, 002-b, 001-a",
        "README.md": r"README\.md is no write-up's name",
    }.items():
        with pytest.raises(ReportError, match=sentence):
            find(tmp_path, name)
    (tmp_path / "002-b.md").unlink()
    with pytest.raises(ReportError, match="only finished write-ups; name one"):
        unfinished(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('intent: "why"', "intent: why", ":2: 'intent: why' is not a line of a write-up's head"),
        ('intent: "why"', "intent: 3", ": intent: input should be a valid string"),
        ('run: ""', "", ":7: '' is not a line"),
        ('run: ""', "run: [[[", ":7: 'run: [[[' is not a line"),
        ('run: ""', "color: 3", ":7: 'color: 3' is not a line"),
        ('run: ""', 'shards: "L02"', ":7: 'shards: \"L02\"' is not a line"),
        ('shards: "L01"\n', "", ": shards: field required"),
        ("---\n", "+++\n", ":1: has no head between two lines '---'"),
    ],
)
def test_a_damaged_head_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    writeup = page(tmp_path, "001-a")
    writeup.path.write_text(writeup.path.read_text().replace(old, new))
    with pytest.raises(ReportError) as caught:
        read(writeup.path)
    assert str(caught.value).startswith(f"{writeup.path}{says}")
    assert "\n" not in str(caught.value)


def test_pages_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"001-a\.md cannot be read: No such file or directory"):
        read(tmp_path / "001-a.md")
    (tmp_path / "001-a.md").write_bytes(b"---\n\xff")
    with pytest.raises(ReportError, match=r"001-a\.md:2: not UTF-8 text"):
        read(tmp_path / "001-a.md")
    (tmp_path / "file").touch()
    with pytest.raises(
        ReportError, match=r"001-a\.md cannot be written: (File exists|Not a directory)"
    ):
        page(tmp_path / "file", "001-a")


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


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r#"))


@given(mine=TEXT, text=TEXT)
def test_sections_change_and_all_else_stays(mine: str, text: str) -> None:
    body = f"\n{mine}\n## Result\n\nold\n\n## Lesson\n{mine}\n## Lesson\n\ntwice\n"
    once = WriteUp(Path("001-a.md"), HEAD, body).with_sections({"Result": text, "Next": "x"})
    assert once.body.startswith(f"\n{mine}\n## Result\n\n{text}\n\n## Lesson\n{mine}\n")
    assert once.body.endswith("## Lesson\n\ntwice\n\n## Next\n\nx\n")
    assert once.with_sections({"Result": text, "Next": "x"}) == once


def test_a_page_comes_back_as_it_was_written(tmp_path: Path) -> None:
    writeup = page(tmp_path, "001-a", "\n## Intent\n\nwhy\n\nmine\n\n## Next\n")
    assert read(writeup.path) == writeup
    assert writeup.sections == {"Intent": "why\n\nmine", "Next": ""}
    windows = writeup.path.read_bytes().replace(b"\n", b"\r\n")
    writeup.path.write_bytes(b"\xef\xbb\xbf" + windows)
    assert read(writeup.path) == writeup


def test_pages_for_the_report(tmp_path: Path) -> None:
    page(tmp_path, "001-a", "\n## Intent\n\n4 bits\n")
    (tmp_path / "002-b.md").write_text("nothing")
    damaged, good = writeups(tmp_path)
    assert (damaged.name, dict(damaged.sections)) == ("002-b", {})
    assert "002-b.md:1: has no head" in damaged.problem
    assert good.sections["Intent"] == "4 bits"
    assert "Intent" in SECTIONS
    assert [*writeups(tmp_path / "none")] == []
