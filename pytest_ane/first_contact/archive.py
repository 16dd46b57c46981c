"""The archive: facts, logs and recordings of a run in one zip file, without personal data."""

from __future__ import annotations

import getpass
import json
import re
import socket
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from pytest_ane.first_contact.steps import STEPS, Facts
from pytest_ane.mlprogram.atomic import replacing
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.strict_json import parse_json

_NAME = re.compile(
    r"steps/[a-z0-9-]{1,40}\.json|log\.txt|arithmetic\.csv"
    r"|recordings/[a-z0-9-]{1,40}/(?:script\.json|plans/[\w-]{1,80}\.json"
    r"|values/[\w-]{1,80}\.safetensors)"
)
_MOST_FILES, _MOST_BYTES = 5_000, 1 << 30
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SHORTEST_NAME = 2


@dataclass(frozen=True)
class Archive:
    """What an archive holds.

    Attributes:
        facts: of each step.
        files: every file's bytes by name.
    """

    facts: Mapping[str, Facts]
    files: Mapping[str, bytes] = field(repr=False)

    def fixtures(self, folder: Path) -> list[Path]:
        """Write the recordings that `pytest_ane.testing.Replayer` plays, a folder each.

        Raises:
            ExecutionError: a folder exists, or cannot be written.
            RecordingError: a recording is damaged.
        """
        from pytest_ane.testing import Script

        names = {n.split("/")[1] for n in self.files if n.startswith("recordings/")}
        written = []
        for name in sorted(names):
            target = folder / name
            prefix = f"recordings/{name}/"
            if f"{prefix}script.json" not in self.files:
                continue  # The process ended before the recording was complete.
            try:
                target.mkdir(parents=True)
                for file in (n for n in self.files if n.startswith(prefix)):
                    path = target / file.removeprefix(prefix)
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(self.files[file])
            except FileExistsError:
                raise ExecutionError(f"{target}: exists; name another folder.") from None
            except OSError as error:
                raise ExecutionError(f"{target}: cannot be written ({error.strerror}).") from None
            Script.load(target)
            written.append(target)
        return written


def contents(folder: Path) -> list[tuple[str, Path]]:
    """Names and files that `pack` takes of a run's folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = ((path.relative_to(folder).as_posix(), path) for path in files)
    return [(name, path) for name, path in named if _NAME.fullmatch(name)]


def pack(folder: Path, target: Path) -> None:
    """Write the archive of a run's folder.

    Texts lose the user's name, the home folder, the machine's name, and the folders in use.

    Raises:
        ExecutionError: it cannot be written.
    """
    redact = redacting(folder)
    try:
        with replacing(target) as path, ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for name, file in contents(folder):
                # Without the times at which files were made.
                archive.writestr(ZipInfo(name, _EPOCH), _redacted(file, redact), ZIP_DEFLATED)
    except OSError as error:
        raise ExecutionError(f"{target}: cannot be written ({error.strerror}).") from None


def redacting(folder: Path) -> Callable[[str], str]:
    """A function that takes personal data of this machine out of a text."""
    places = {
        str(folder.resolve()): "FOLDER",
        str(folder): "FOLDER",
        str(Path.cwd()): "CWD",
        str(Path.home()): "~",
        str(Path(tempfile.gettempdir()).resolve()): "TMP",
        tempfile.gettempdir(): "TMP",
    }
    host = socket.gethostname()
    words = {_user(): "USER", host: "HOST", host.partition(".")[0]: "HOST"}
    patterns = [
        (re.compile(rf"(?:{_forms(place)})(?![\w-])", re.IGNORECASE), name)
        for place, name in sorted(places.items(), key=lambda item: -len(item[0]))
        if len(place) > _SHORTEST_NAME
    ]
    patterns += [
        (re.compile(rf"(?<![^\W_])(?:{_forms(word)})(?![^\W_])", re.IGNORECASE), name)
        for word, name in words.items()
        if len(word) > _SHORTEST_NAME
    ]

    def redact(text: str) -> str:
        for pattern, name in patterns:
            text = pattern.sub(name, text)
        return text

    return redact


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # An account without a name.
        return ""


def _forms(text: str) -> str:
    """A pattern of a name as texts of macOS have it: decomposed, in a URL, for a shell, in JSON."""
    composed = {unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    forms = {text} | composed | {quote(one) for one in composed}
    forms |= {one.replace(" ", "\\ ") for one in composed}
    forms |= {json.dumps(one)[1:-1] for one in composed}
    return "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))


def _redacted(file: Path, redact: Callable[[str], str]) -> bytes:
    data = file.read_bytes()
    if file.suffix == ".safetensors":
        return data
    text = data.decode(errors="replace")
    if file.suffix == ".json":
        try:
            return json.dumps(_strings(json.loads(text), redact), indent=1).encode() + b"\n"
        except ValueError:
            pass
    return redact(text).encode(errors="replace")


def _strings(value: Any, redact: Callable[[str], str]) -> Any:
    """JSON data with every string redacted; keys stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_strings(one, redact) for one in value]
    if isinstance(value, dict):
        return {key: _strings(one, redact) for key, one in value.items()}
    return value


def read_archive(path: Path) -> Archive:
    """Read an archive of any machine, which is not trusted.

    Raises:
        ExecutionError: it cannot be read, is damaged, or holds something else.
    """
    try:
        with ZipFile(path) as archive:
            files = dict(_members(path, archive))
    except OSError as error:
        raise ExecutionError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ExecutionError(
            f"{path}: is no archive of first-contact, or damaged ({error})."
        ) from None
    facts = {}
    for name in STEPS:
        if (data := files.get(f"steps/{name}.json")) is not None:
            try:
                facts[name] = parse_json(data.decode())
            except ValueError as error:
                raise ExecutionError(f"{path}: steps/{name}.json is damaged ({error}).") from None
            if not isinstance(facts[name], dict):
                raise ExecutionError(f"{path}: steps/{name}.json is no JSON object.")
    if not facts:
        raise ExecutionError(f"{path}: holds no facts of first-contact.")
    return Archive(facts, files)


def _members(path: Path, archive: ZipFile) -> Iterator[tuple[str, bytes]]:
    members = archive.infolist()
    if len(members) > _MOST_FILES or sum(m.file_size for m in members) > _MOST_BYTES:
        raise ExecutionError(
            f"{path}: has more than {_MOST_FILES} files or {_MOST_BYTES >> 30} GiB."
        )
    for member in members:
        if not _NAME.fullmatch(member.filename):
            raise ExecutionError(
                f"{path}: holds {member.filename!r}, which first-contact does not write."
            )
        yield member.filename, archive.read(member)
