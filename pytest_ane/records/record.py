"""One record: what a gate measured, of which bytes, where and when. All that is kept is made of it.

    {"format": 1, "gate": "fidelity", "subject": "smollm2:L01", "time": "2026-11-21T16:05:59Z",
     "files": {"L01/Manifest.json": "0f3a..."}, "environment": {"backend": "cpu", "chip": "M4"},
     "asked": {"reference": "float32"}, "commit": "1a2b...", "figures": {"cosine.min": 0.9981},
     "measurement": {"comparisons": [...]}, "verdict": {"status": "passed"}, "sha256": "77aa..."}

A run is a file of such lines (`run`). Evidence is one in a file of its own, laid out for git, which
holds a measurement and no verdict (`store`). History is runs whose records have figures alone.

`sha256` is the digest of everything else, so that an edited number is noticed; it proves nothing of
who wrote it, which signatures do. A verdict is never believed: `verify` and `audit` derive it again
from the measurement. What is read is strict: sizes, nesting, names that stand twice, numbers and
characters are checked before anything is made of it, and then the types of the measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from pytest_ane.gates.base import GateTest, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Shard
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.atomic import read_regular
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.mlprogram.strict_json import parse_json, strict

FORMAT = 1
EDITED = "was edited after it was recorded"
MOST_BYTES = 16 << 20
"""Of a record; a reader refuses longer ones before it parses them."""
_DEEPEST = 32
_MOST = 2**64
_WIDTH = 180
_LONGEST = 100
_NUMBERS = ("NaN", "Infinity", "-Infinity")
_OBEYED = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls but tab and newline, changes of direction, halves of characters."""
_FREE = ("text", "expected_text")
"""What a model said is shown quoted, whatever it holds."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_OF_MACHINE = ("versions",)
"""What a model's identity says of the machine it is read on, not of the model."""


Sha256: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Digest: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{0,64}$")]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was measured, of which bytes, where and when.

    Attributes:
        gate: whose question the measurement answers; empty where a test broke down before a gate.
        subject: qualified shard id (`smollm2:L01`), or a model (`smollm2`).
        time: when it was measured, in UTC and whole seconds.
        part: which test, where a gate has several of one subject: `load`, `call[T1]`, `[ane]`.
        files: SHA-256 of the artifact's files by `<shard>/<path>`: `L01/Manifest.json`.
        environment: chip, operating system, compute units and versions, as the backend tells them.
        asked: whatever else decides what is measured, as `plain` makes it.
        commit: of the checkout it was measured in; empty outside of git.
        gate_file: SHA-256 of the gate's own file.
        counter: 1 for the first evidence of a gate and subject, then one more each time.
        figures: what the measurement comes to, by name and without limits.
        measurement: from which verdicts are derived again; JSON data until `typed` has checked it.
        verdict: what the run made of it, as JSON data; None in evidence and history.
    """

    gate: str
    subject: str
    time: datetime
    part: str = ""
    files: Mapping[str, Sha256] = field(default_factory=dict)
    environment: Mapping[str, Annotated[str, Field(min_length=1)]] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    commit: Digest = ""
    gate_file: Digest = ""
    counter: Annotated[int, Field(ge=1, strict=True)] = 1
    figures: Mapping[str, Any] = field(default_factory=dict)
    measurement: Any = None
    verdict: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.measurement is None or isinstance(self.measurement, dict):
            return  # What was read and is not typed yet.
        gate = GATES.get(self.gate)
        if gate is None or not isinstance(self.measurement, gate.measurement):
            raise ValueError(f"a {type(self.measurement).__name__} answers no {self.gate} gate")

    def to_data(self) -> dict[str, Any]:
        """JSON data with their digest; what has its default value is left out."""
        data: dict[str, Any] = {"format": FORMAT, "gate": self.gate, "subject": self.subject}
        data["time"] = utc(self.time)
        for name in _OPTIONAL:
            value = getattr(self, name)
            if name == "measurement" and value is not None and not isinstance(value, dict):
                value = to_data(self.gate, value)
            if value not in ("", 1, None, {}):
                data[name] = strict(value)
        return sealed(data)

    def to_json(self) -> str:
        """The text of an evidence file, laid out so that diffs are short; ends with a newline."""
        return pretty(self.to_data()) + "\n"

    def to_line(self) -> bytes:
        """The line of a file of records, with its line break."""
        return json.dumps(self.to_data(), separators=(",", ":"), allow_nan=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Evidence that the judges can read; `EvidenceError` where it is damaged or edited."""
        found = cls.from_data(parse(data))
        if found.gate not in GATES or not GATES[found.gate].recordable:
            raise EvidenceError(f"is of the gate {found.gate!r}, which has no evidence")
        if not found.files:
            raise EvidenceError("files names no file")
        return replace(found.typed(), verdict=None)  # No opinion is read from evidence.

    @classmethod
    def from_data(cls, data: Any) -> Record:
        """The record of `to_data`, not `typed` yet; `EvidenceError` of a damaged or edited one."""
        top = _object(data, "the file")
        if top.get("format") != FORMAT or isinstance(top["format"], bool):
            raise EvidenceError(f"is no record of format {FORMAT}")
        if sealed(top)["sha256"] != top.get("sha256"):
            raise EvidenceError(f"{EDITED}: its own sha256 does not fit")
        known = {name: top[name] for name in ("gate", "subject", *_OPTIONAL) if name in top}
        try:
            time = _time(top.get("time"))
            found: Record = _adapter(None).validate_python({**known, "time": time})
        except ValidationError as error:
            place = error.errors(include_url=False, include_input=False)[0]["loc"]
            where = ".".join(map(str, place)) or "measurement"
            raise EvidenceError(f"{where} is damaged") from None
        return found

    def typed(self) -> Record:
        """The same with its measurement as the gate's own record; `EvidenceError` for none."""
        data = _object(self.measurement, "measurement")
        return replace(self, measurement=from_data(self.gate, data, self.environment))

    def brief(self) -> Record:
        """What history keeps: figures, neither the measurement nor a verdict."""
        return replace(self, measurement=None, verdict=None)

    @property
    def test(self) -> GateTest:
        """The test that it is of."""
        return GateTest(self.gate, self.subject, "ane" if self.part == "[ane]" else "typed")

    @property
    def question(self) -> str:
        """Digest of what was asked; empty where nothing was."""
        return key_digest(dict(self.asked)) if self.asked else ""

    @property
    def artifact(self) -> str:
        """One digest of all files; empty where none is known."""
        return key_digest(dict(self.files)) if self.files else ""


_OPTIONAL = tuple(f.name for f in fields(Record) if f.name not in ("gate", "subject", "time"))


def files_of(artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    """SHA-256 of all files of artifacts, given by shard id, by name: `L01/Manifest.json`."""
    return {
        f"{shard}/{name}": digest
        for shard, artifact in artifacts.items()
        for name, digest in artifact.files.items()
    }


def question(
    gate: str, subject: Subject, model: Model, identity: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """What decides a gate's measurement besides artifact and machine, as JSON data.

    Recorder and verifier call this one function, so both mean the same. The identity of the model's
    weights and code is asked where its float32 modules are the reference; versions of packages and
    folders are left out of it, for they differ between a Mac and the machine that verifies.
    """
    function = subject.function if isinstance(subject, Shard) else None
    return {
        **({"function": function} if function else {}),
        **GATES[gate].question(subject, model, lambda: source_digest(identity())),
    }


def source_digest(identity: Mapping[str, Any]) -> str:
    """The same on every machine, of what a model's weights and code depend on."""
    parts = {key: part for key, part in identity.items() if key not in _OF_MACHINE}
    if "depends" in parts:  # What a builder reads, by absolute paths: they differ as well.
        parts["depends"] = sorted(parts["depends"].values())
    return key_digest(parts)


def simulated(record: Record) -> bool:
    """Whether the CPU executor computed it in the ANE's arithmetic."""
    named = record.environment.get("arithmetic", "typed") != "typed"
    return named or getattr(record.measurement, "arithmetic", "typed") != "typed"


def machine(record: Record) -> str:
    """`Apple M4 Max, macOS 26.1, CPU_AND_NE`; of what no device computed `simulated ANE (h16+)`."""
    if simulated(record):
        return SIMULATED
    known = (record.environment.get(key) for key in ("chip", "os", "compute_units"))
    # A replay stood in for Core ML itself.
    return ("replayed " if "native" in record.environment else "") + ", ".join(filter(None, known))


def changes(old: Record, new: Record) -> Iterator[str]:
    """A line for all that differs but times, such as `cosine.min 0.981204 -> 0.980917`."""
    if old.subject != new.subject or old.gate != new.gate:
        yield f"{old.subject} {old.gate} -> {new.subject} {new.gate}"
    names = old.files.keys() | new.files.keys()
    if count := sum(old.files.get(name) != new.files.get(name) for name in names):
        yield f"{count} file{'s' if count > 1 else ''} changed, of {len(names)}"
    for prefix, then, now in (
        ("", old.environment, new.environment), ("asked ", plain(old.asked), plain(new.asked))
    ):  # fmt: skip
        for key in dict.fromkeys((*then, *now)):
            if then.get(key) != now.get(key):
                yield f"{prefix}{key} {_shown(then.get(key))} -> {_shown(now.get(key))}"
    if old.gate != new.gate:
        return
    lines = list(GATES[new.gate].changes(old.measurement, new.measurement))
    yield from lines
    if not lines and to_data(new.gate, old.measurement) != to_data(new.gate, new.measurement):
        yield "single numbers differ, their figures do not"


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def to_data(gate: str, measurement: Any) -> dict[str, Any]:
    """JSON data of a measurement without provenance; what has its default value is left out."""
    made = _adapter(gate).dump_python(measurement, mode="json", exclude_defaults=True)
    made.pop("provenance", None)
    data: dict[str, Any] = strict(made)
    return data


def from_data(gate: str, data: Mapping[str, Any], provenance: Mapping[str, str]) -> Any:
    """The measurement that `to_data` made data of; `EvidenceError` of a wrong or missing field."""
    try:
        return _adapter(gate).validate_python({**data, "provenance": provenance})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        says = first["msg"].removeprefix("Value error, ")
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        where = "".join(["measurement", *parts])
        raise EvidenceError(f"{where}: {says[:1].lower()}{says[1:]}") from None


@cache
def _adapter(gate: str | None) -> TypeAdapter[Any]:
    return TypeAdapter(Record if gate is None else GATES[gate].measurement)


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON makes of a value: two are the same question if these are equal."""
    made: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return made


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record's data with the digest of all else in it as `sha256`."""
    unsealed = {key: value for key, value in data.items() if key != "sha256"}
    return {**unsealed, "sha256": key_digest(unsealed)}


def utc(time: datetime) -> str:
    """`2026-11-21T16:05:59Z`."""
    return time.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def parse(data: bytes) -> Any:
    """The JSON value in the bytes of a stranger; `EvidenceError` where it is not strict."""
    if len(data) > MOST_BYTES:
        raise EvidenceError(f"has {len(data):,} bytes, more than any evidence should")
    try:
        value = parse_json(data.decode())
    except UnicodeDecodeError as error:
        raise EvidenceError(f"byte {error.start} is no UTF-8 text") from None
    except ValueError as error:
        raise EvidenceError(str(error)) from None
    _check(value)
    return value


def read_file(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """A file's bytes; None where there is none, `EvidenceError` of what is no file or too large."""
    try:
        return read_regular(path, most)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror}).") from None


def pretty(value: Any, indent: int = 0) -> str:
    """Strict JSON with sorted keys; what fits a line, or is a list of numbers, takes one line."""
    line = json.dumps(value, sort_keys=True, allow_nan=False)
    if indent + len(line) <= _WIDTH or not isinstance(value, dict | list) or _is_row(value):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, list):
        parts = [pretty(one, indent + 1) for one in value]
        opening, closing = "[", "]"
    else:
        parts = [f"{json.dumps(k)}: {pretty(value[k], indent + 1)}" for k in sorted(value)]
        opening, closing = "{", "}"
    body = ",\n".join(pad + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int | float) or (isinstance(one, str) and one in _NUMBERS) for one in value
    )


def _check(top: Any) -> None:
    """Depth, texts and whole numbers in a value; floats, most of a file, need no look."""
    waiting: list[tuple[str, Any, int]] = [("", top, 0)]
    while waiting:
        key, one, depth = waiting.pop()
        if depth >= _DEEPEST:
            raise EvidenceError(f"the JSON is nested more than {_DEEPEST} deep")
        if isinstance(one, dict):
            _check_plain("a name", "\n".join(one))
            waiting += [(name, x, depth + 1) for name, x in one.items() if type(x) is not float]
        elif isinstance(one, list):
            if (kinds := set(map(type, one))) == {int}:
                _check_plain(key, max(one, key=abs))
            elif kinds != {float}:
                waiting += [(key, inner, depth + 1) for inner in one]
        else:
            _check_plain(key, one)


def _check_plain(key: str, value: Any) -> None:
    if isinstance(value, str):
        if key not in _FREE and _OBEYED.search(value):
            raise EvidenceError(f"{key or 'a text'} holds characters that a terminal would obey")
    elif isinstance(value, int) and abs(value) > _MOST:
        raise EvidenceError(f"{key} has a number of {len(str(abs(value)))} digits")


def _time(text: Any) -> datetime:
    try:
        if isinstance(text, str) and _TIME.fullmatch(text):
            return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    raise EvidenceError(f"time {text!r} is no time such as 2026-11-21T16:00:00Z")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EvidenceError(f"{what} is no JSON object")
    return value
