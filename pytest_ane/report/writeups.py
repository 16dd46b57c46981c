"""Write-ups of experiments: a Markdown file each, and beside it the manifest, the run and charts.

    experiments/007-4-bit-palettes.md     the page: a head, and seven sections
    experiments/007-4-bit-palettes.toml   the manifest as it was when the intent was written
    experiments/007-4-bit-palettes.jsonl  the run, as `--ane-report` wrote it

The head stands between two lines `---`, as YAML whose values are JSON, so GitHub shows it as a
table. A section begins with a line `## TITLE`. The commands write those of `WRITTEN`, whole; all
other text is a person's, and stays.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from textwrap import shorten

from pydantic import TypeAdapter, ValidationError

from pytest_ane.gates.verdict import some
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.strict_json import first_error, parse_json

FOLDER = "experiments"
"""Of write-ups, beside the manifest."""
SECTIONS = ("Intent", "Setup", "Result", "Surprise", "Lesson", "Next", "References")
WRITTEN = ("Setup", "Result", "Surprise", "Next", "References")
"""Sections that `finish` writes."""
_RULE = "---"
_STEM = re.compile(r"(\d{3,6})-[a-z0-9][a-z0-9-]*")
_HEADING = re.compile(r"^## (.*?)[ \t]*$\n?", re.MULTILINE)
_LONGEST_SLUG = 48
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Head:
    """What was known before anything was built, and which run was told of: empty before `finish`.

    `recorded` is UTC in whole seconds, `2026-11-24T16:00:00Z`; `manifest` its path from the
    write-up's folder; `commit` of the checkout then, empty outside of git.
    """

    intent: str
    recorded: str
    manifest: str
    shards: str
    commit: str = ""
    run: str = ""

    def __str__(self) -> str:
        lines = [f"{name}: {json.dumps(value)}" for name, value in asdict(self).items()]
        return "\n".join((_RULE, *lines, _RULE, ""))


@dataclass(frozen=True)
class WriteUp:
    """A page, and its head as it stands in the file."""

    path: Path
    head: Head
    body: str

    @property
    def sections(self) -> dict[str, str]:
        """The Markdown of each section by its title."""
        _, *pieces = _HEADING.split(self.body)
        return dict(zip(pieces[::2], map(str.strip, pieces[1::2]), strict=True))

    def beside(self, suffix: str) -> Path:
        """A file of the same number and slug: `.jsonl` the run, `.toml` the manifest as it was."""
        return self.path.with_name(f"{self.path.stem}{suffix}")

    def with_sections(self, texts: Mapping[str, str]) -> WriteUp:
        """The page with other texts of these sections; those it has not come last."""
        made, *pieces = _HEADING.split(self.body)
        left = dict(texts)
        for title, old in zip(pieces[::2], pieces[1::2], strict=True):
            text = f"\n{left.pop(title)}\n\n" if title in left else old
            made += f"## {title}\n{text}"
        made = made.rstrip("\n") + "\n"
        made += "".join(f"\n## {title}\n\n{text}\n" for title, text in left.items())
        return replace(self, body=made)

    def save(self) -> None:
        """Write the file in one step; `ReportError` where it cannot be written."""
        write(self.path, f"{self.head}{self.body}".encode())


def write(path: Path, data: bytes) -> None:
    """Write a file of a write-up or a page, in a folder that is made; else `ReportError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}.") from None


def read(path: Path) -> WriteUp:
    """A write-up from its file; `ReportError` names file and line where its head is damaged."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ReportError(f"{path} has more bytes than any write-up should.")
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ReportError(f"{path}:{line}: not UTF-8 text; save it as UTF-8.") from None
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}.") from None
    lines = text.split("\n")
    if lines[0] != _RULE or _RULE not in lines[1:]:
        raise ReportError(
            f"{path}:1: has no head between two lines '---'; take it from git, or begin a new "
            "write-up with: pytest-ane report --intent"
        )
    end = lines.index(_RULE, 1)
    return WriteUp(path, _head(path, lines[1:end]), "\n".join(lines[end + 1 :]))


def _head(path: Path, lines: Sequence[str]) -> Head:
    data = dict[str, object]()
    names = [field.name for field in fields(Head)]
    for number, line in enumerate(lines, 2):
        name, colon, text = line.partition(":")
        try:
            if not colon or name not in names or name in data:
                raise ValueError
            data[name] = parse_json(text)
        except ValueError:
            raise ReportError(
                f"{path}:{number}: {line!r} is not a line of a write-up's head, such as "
                "'shards: \"L01\"'; take it from git."
            ) from None
    try:
        return TypeAdapter(Head).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise ReportError(f"{path}: {first_error(error)}; take the head from git.") from None


def paths(folder: Path) -> list[Path]:
    """The files of write-ups in a folder by number, then by name."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".md"]
    except OSError:
        return []
    return sorted((p for p in files if _STEM.fullmatch(p.stem)), key=lambda p: (number(p), p.name))


def number(path: Path) -> int:
    """7 of `007-4-bit-palettes.md`."""
    return int(path.name.partition("-")[0])


def find(folder: Path, name: str) -> Path:
    """A write-up's file by number, slug, both, or path; `ReportError` for none or several."""
    if name.endswith(".md"):
        if not _STEM.fullmatch(Path(name).stem):
            raise ReportError(f"{name} is no write-up's name, such as 007-4-bit-palettes.md.")
        return Path(name) if Path(name).exists() else folder / name
    files = paths(folder)
    named = [
        p for p in files
        if name in (p.stem, p.stem.partition("-")[2])
        or (name.isdecimal() and len(name) <= 6 and int(name) == number(p))
    ]  # fmt: skip
    if len(named) == 1:
        return named[0]
    known = some((path.stem for path in reversed(named or files)), 5) or "none"
    raise ReportError(f"{folder} has {len(named) or 'no'} write-ups {name}; name one of: {known}.")


def unfinished(folder: Path) -> Path:
    """The newest write-up that no run was told of; `ReportError` where there is none."""
    for path in reversed(paths(folder)):
        if not read(path).head.run:
            return path
    raise ReportError(
        f"{folder} has only finished write-ups; name one, or begin one with: "
        "pytest-ane report --intent."
    )


def next_file(folder: Path, intent: str) -> Path:
    """The file of a new write-up: one number above all in the folder, and the intent's slug."""
    highest = max(map(number, paths(folder)), default=0)
    return folder / f"{highest + 1:03d}-{slug(intent)}.md"


def relative(file: Path, folder: Path) -> str:
    """A file's path from a folder, whatever links lead to either."""
    return Path(os.path.relpath(file.parent.resolve() / file.name, folder.resolve())).as_posix()


def slug(text: str) -> str:
    """A text as a file's name: `4-bit-palettes-on-zaya-l01`; what is not Latin is left out."""
    latin = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", latin)
    made = shorten(" ".join(words), _LONGEST_SLUG, placeholder="").replace(" ", "-")
    return made or (words[0][:_LONGEST_SLUG] if words else "experiment")


@dataclass(frozen=True)
class Page:
    """A write-up as the report shows it: Markdown by title, or why it cannot be read."""

    name: str
    sections: Mapping[str, str]
    problem: str = ""


def writeups(folder: Path) -> Iterator[Page]:
    """All write-ups of a folder, the newest first; none where there is no folder."""
    for path in reversed(paths(folder)):
        try:
            yield Page(path.stem, read(path).sections)
        except ReportError as error:
            yield Page(path.stem, {}, str(error))
