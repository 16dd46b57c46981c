"""Write-ups of experiments: a Markdown file each, and beside it the manifest, the run and charts.

    experiments/007-4-bit-palettes.md     the page: a head, and seven sections
    experiments/007-4-bit-palettes.toml   the manifest as it was when the intent was written
    experiments/007-4-bit-palettes.jsonl  the run, as `--ane-report` wrote it

The head stands between two lines `---`, as YAML whose values are JSON, so GitHub shows it as a
table. In a section `<!-- writeup: NAME DIGEST -->` and `<!-- end -->` enclose what the commands
write; all else is a person's, and stays. By the digest, the beginning of a SHA-256, words are
known that a person wrote between the marks.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.strict_json import parse_json
from pytest_ane.records.git import git

FOLDER = "experiments"
"""Of write-ups, beside the manifest."""
SECTIONS = ("Intent", "Setup", "Result", "Surprise", "Lesson", "Next", "References")
INTENT = "intent"
"""The part that holds the intent as it was recorded."""
_RULE = "---"
_STEM = re.compile(r"(\d{3,6})-[a-z0-9][a-z0-9-]*")
_NUMBER = re.compile(r"(\d{3,6})-")
_PART = re.compile(
    r"^<!-- writeup: (?P<name>\w+) (?P<digest>[0-9a-f]{12}) -->\n(?P<text>.*?)^<!-- end -->$",
    re.DOTALL | re.MULTILINE,
)
_OPENING = re.compile(r"^<!-- writeup: .*", re.MULTILINE)
_HEADING = re.compile(rf"^## ({'|'.join(SECTIONS)})[ \t]*$", re.MULTILINE)
_LONGEST_SLUG = 48
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Head:
    """What was known before anything was built, and which run was told of.

    Attributes:
        number: of the write-up.
        intent_sha256: of the text in the part `intent`.
        recorded: when the intent was written: UTC and whole seconds, `2026-11-24T16:00:00Z`.
        manifest: its path from the write-up's folder; `manifest_sha256` its digest then.
        shards: the selection, as `--ane-shards` takes it.
        commit: of the checkout then; empty outside of git. `clean`: whether it was that commit.
        run_sha256: of the run's file; empty before `finish`.
    """

    number: int
    intent_sha256: str
    recorded: str
    manifest: str
    manifest_sha256: str
    shards: str
    commit: str = ""
    clean: bool = False
    run_sha256: str = ""

    def __str__(self) -> str:
        lines = [f"{name}: {json.dumps(value)}" for name, value in asdict(self).items()]
        return "\n".join((_RULE, *lines, _RULE, ""))


@dataclass(frozen=True)
class WriteUp:
    """A page.

    Attributes:
        path: of its file.
        head: as it stands in the file.
        body: all after the head.
    """

    path: Path
    head: Head
    body: str

    @property
    def stem(self) -> str:
        """Number and slug: `007-4-bit-palettes`."""
        return self.path.stem

    @property
    def finished(self) -> bool:
        """Whether a run was told of."""
        return bool(self.head.run_sha256)

    @property
    def parts(self) -> dict[str, str]:
        """What the commands wrote, by the part's name."""
        return {part["name"]: part["text"].strip() for part in _PART.finditer(self.body)}

    @property
    def edited(self) -> list[str]:
        """Names of the parts whose text is no longer as a command wrote it."""
        return [part["name"] for part in _PART.finditer(self.body) if _edited(part)]

    @property
    def sections(self) -> dict[str, str]:
        """The Markdown of each section by its title, a person's words included, without marks."""
        pieces = _HEADING.split(self.body)
        bare = [_PART.sub(lambda part: part["text"].strip(), text).strip() for text in pieces[2::2]]
        return dict(zip(pieces[1::2], bare, strict=True))

    @property
    def manifest(self) -> Path:
        """The manifest's path."""
        return self.path.parent / self.head.manifest

    def beside(self, suffix: str) -> Path:
        """A file of the same number and slug: `.jsonl` the run, `.toml` the manifest as it was."""
        return self.path.with_name(f"{self.stem}{suffix}")

    def with_parts(self, parts: Mapping[str, str]) -> WriteUp:
        """The page with other parts; those that it has no marks for are left out.

        What a person wrote between marks is kept below them.
        """

        def current(old: re.Match[str]) -> str:
            text = parts.get(old["name"])
            if text is None:
                return old[0]
            kept = f"\n\n{old['text'].strip()}" if _edited(old) else ""
            return f"{part(old['name'], text)}{kept}"

        return replace(self, body=_PART.sub(current, self.body))

    def save(self) -> None:
        """Write the file in one step.

        Raises:
            ReportError: it cannot be written.
        """
        with _told(self.path):
            write_atomically(self.path, f"{self.head}{self.body}".encode())


def part(name: str, text: str) -> str:
    """A part of a section between its marks."""
    return f"<!-- writeup: {name} {digest_of(text)[:12]} -->\n{text}\n<!-- end -->"


def digest_of(text: str) -> str:
    """SHA-256 of a part's text."""
    return sha256(text.strip().encode(errors="surrogateescape")).hexdigest()


def _edited(found: re.Match[str]) -> bool:
    return not digest_of(found["text"]).startswith(found["digest"])


def read(path: Path) -> WriteUp:
    """A write-up from its file.

    Raises:
        ReportError: it cannot be read, or its head or a part is damaged; names file and line.
    """
    with _told(path):
        if path.stat().st_size > _MOST_BYTES:
            raise ReportError(f"{path} has more bytes than any write-up should.")
        try:
            text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise ReportError(f"{path}:{line}: not UTF-8 text; save it as UTF-8.") from None
    lines = text.split("\n")
    if lines[0] != _RULE or _RULE not in lines[1:]:
        raise ReportError(
            f"{path}:1: has no head between two lines '---'; take it from git, or begin a new "
            "write-up with: pytest-ane writeup new"
        )
    end = lines.index(_RULE, 1)
    head, body = _head(path, lines[1:end]), "\n".join(lines[end + 1 :])
    whole = {match.start() for match in _PART.finditer(body)}
    for opening in _OPENING.finditer(body):
        if opening.start() not in whole:
            at = end + 2 + body.count("\n", 0, opening.start())
            raise ReportError(
                f"{path}:{at}: this mark is damaged, or no line '<!-- end -->' follows; take it "
                "from git."
            )
    return WriteUp(path, head, body)


def _head(path: Path, lines: Sequence[str]) -> Head:
    data, at = dict[str, object](), dict[str, int]()
    names = [field.name for field in fields(Head)]
    for number, line in enumerate(lines, 2):
        name, colon, text = line.partition(":")
        try:
            if not colon or name not in names or name in data:
                raise ValueError
            data[name], at[name] = parse_json(text), number
        except ValueError:
            raise ReportError(
                f"{path}:{number}: {line!r} is not a line of a write-up's head, such as "
                "'shards: \"L01\"'; take it from git."
            ) from None
    try:
        return TypeAdapter(Head).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        raise ReportError(
            f"{path}:{at.get(name, 1)}: {name}: {first['msg'].lower()}; take the head from git."
        ) from None


# Files of a folder, and their numbers.


def file_of(folder: Path, stem: str) -> Path:
    """The file of a write-up of this number and slug."""
    return folder / f"{stem}.md"


def paths(folder: Path) -> list[Path]:
    """The files of write-ups in a folder by number, then by name."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".md"]
    except OSError:
        return []
    return sorted((p for p in files if _STEM.fullmatch(p.stem)), key=lambda p: (_number(p), p.name))


def find(folder: Path, name: str) -> Path:
    """A write-up's file by number, slug, both, or path.

    Raises:
        ReportError: there is none, or there are several.
    """
    if name.endswith(".md"):
        if not _STEM.fullmatch(Path(name).stem):
            raise ReportError(f"{name} is no write-up's name, such as 007-4-bit-palettes.md.")
        return Path(name) if Path(name).exists() else folder / name
    files = paths(folder)
    named = [
        p for p in files
        if name in (p.stem, p.stem.partition("-")[2])
        or (name.isdecimal() and len(name) <= 6 and int(name) == _number(p))
    ]  # fmt: skip
    if len(named) == 1:
        return named[0]
    if named:
        raise ReportError(f"{name} names {len(named)} write-ups; name one: {_listed(named)}.")
    has = f"it has {_listed(files)}" if files else "it has none"
    raise ReportError(f"{folder} has no write-up {name}; {has}.")


def unfinished(folder: Path) -> Path:
    """The newest write-up that no run was told of.

    Raises:
        ReportError: there is none, or a head is damaged.
    """
    for path in reversed(paths(folder)):
        if not read(path).finished:
            return path
    what = "only finished write-ups; name one" if paths(folder) else "no write-up; begin one with"
    how = "" if paths(folder) else ": pytest-ane writeup new"
    raise ReportError(f"{folder} has {what}{how}.")


def collisions(folder: Path) -> list[tuple[str, ...]]:
    """Stems that share a number, as two branches gave it before they were merged."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for path in paths(folder):
        by_number[_number(path)].append(path.stem)
    return [tuple(stems) for stems in by_number.values() if len(stems) > 1]


def relative(file: Path, folder: Path) -> str:
    """A file's path from a folder, whatever links lead to either."""
    return Path(os.path.relpath(file.parent.resolve() / file.name, folder.resolve())).as_posix()


def next_number(folder: Path) -> int:
    """One above all numbers in the folder, in every branch, local or remote, and every worktree."""
    return max(map(_numbered, _names(folder)), default=0) + 1


def slug(text: str) -> str:
    """A text as a file's name: `4-bit-palettes-on-zaya-l01`; what is not Latin is left out."""
    latin = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", latin)
    made = ""
    for word in words:
        if len(made) + len(word) >= _LONGEST_SLUG:
            break
        made = f"{made}-{word}" if made else word
    return made or (words[0][:_LONGEST_SLUG] if words else "experiment")


@contextmanager
def numbering(folder: Path) -> Iterator[None]:
    """The only process that gives numbers in any worktree; the folder is made if need be.

    Raises:
        ReportError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(_lock(folder)).acquire()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ReportError(
            f"{folder} cannot hold write-ups ({why}); name another folder with --folder."
        ) from None
    with held:
        yield


def _lock(folder: Path) -> Path:
    """Numbers are given in all worktrees of a repository, so the lock is in what they share."""
    shared = git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if shared:
        return Path(shared.removesuffix("\n"), "pytest-ane-writeups.lock")
    name = sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"pytest-ane-writeups-{name}.lock")


def renumber(writeup: WriteUp) -> WriteUp:
    """Give a write-up, and all files of its name, the next free number; links to it follow.

    Raises:
        ReportError: a file cannot be written.
    """
    folder, old = writeup.path.parent, writeup.stem
    with numbering(folder):
        number = next_number(folder)
        new = f"{number:03d}-{old.partition('-')[2]}"
        name = re.compile(rf"(?<![\w-]){re.escape(old)}(?![\w-])")
        title = re.compile(rf"^# {writeup.head.number:03d}: ", re.MULTILINE)
        body = title.sub(f"# {number:03d}: ", _relinked(writeup.body, name, new), count=1)
        moved = WriteUp(file_of(folder, new), replace(writeup.head, number=number), body)
        with _told(folder):
            moved.save()
            for file in folder.glob(f"{old}.*"):
                if file.suffix != ".md":
                    file.rename(folder / f"{new}{file.name[len(old) :]}")
            writeup.path.unlink()
            for path in paths(folder):
                text = path.read_text(encoding="utf-8", errors="surrogateescape")
                if path != moved.path and name.search(text):
                    data = _relinked(text, name, new).encode(errors="surrogateescape")
                    write_atomically(path, data)
    return moved


def _relinked(text: str, name: re.Pattern[str], new: str) -> str:
    """A page with another name, also in its parts; the intent stays as it was recorded."""

    def current(old: re.Match[str]) -> str:
        if old["name"] is None:
            return new
        if old["name"] == INTENT:
            return old[0]
        made = name.sub(new, old[0])
        digest = digest_of(name.sub(new, old["text"]))[:12]
        return made if _edited(old) else made.replace(old["digest"], digest, 1)

    return re.sub(f"{_PART.pattern}|{name.pattern}", current, text, flags=_PART.flags)


def _names(folder: Path) -> Iterator[str]:
    """Names of all files in the folder, here and wherever else git knows it."""
    folder = folder.resolve()
    yield from _entries(folder)
    near = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    top = git(near, "rev-parse", "--show-toplevel").removesuffix("\n")
    if not top or not folder.is_relative_to(top):
        return
    inner = folder.relative_to(top).as_posix()
    commits = git(near, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/remotes")
    heads = []
    for line in git(near, "worktree", "list", "--porcelain").split("\n"):
        what, _, value = line.partition(" ")
        if what == "worktree":
            yield from _entries(Path(value, inner))
        elif what == "HEAD":
            heads.append(value)
    asked = "".join(
        f"{commit}:{'' if inner == '.' else inner}\n" for commit in {*commits.split(), *heads}
    )
    told = git(near, "cat-file", "--batch-check=%(objecttype) %(objectname)", given=asked)
    kinds = {tuple(line.split(" ")) for line in told.splitlines()}
    for tree in sorted(name for kind, *names in kinds if kind == "tree" for name in names):
        yield from git(near, "ls-tree", "--full-tree", "--name-only", "-z", tree).split("\0")


def _entries(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _numbered(name: str) -> int:
    number = _NUMBER.match(name)
    return int(number[1]) if number else 0


def _number(path: Path) -> int:
    return _numbered(path.name)


def _listed(files: Sequence[Path]) -> str:
    names = [path.stem for path in files]
    return ", ".join(names[-5:]) + (" and more" if len(names) > 5 else "")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the file system as one sentence.

    Raises:
        ReportError: with the sentence.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise ReportError(f"{where}: {(error.strerror or str(error)).lower()}.") from None


@dataclass(frozen=True)
class Page:
    """A write-up as the report shows it.

    Attributes:
        name: number and slug.
        head: None where the file is damaged.
        sections: Markdown by title; of a damaged file none.
        problem: why it cannot be read, in a sentence.
    """

    name: str
    head: Head | None
    sections: Mapping[str, str]
    problem: str = ""


def writeups(folder: Path) -> list[Page]:
    """All write-ups of a folder, the newest first; none where there is no folder."""
    return [_page(path) for path in reversed(paths(folder))]


def _page(path: Path) -> Page:
    try:
        writeup = read(path)
    except ReportError as error:
        return Page(path.stem, None, {}, str(error))
    return Page(path.stem, writeup.head, writeup.sections)
