"""An evidence file: an in-toto Statement whose predicate is a measurement.

Source: the Statement layer of in-toto attestations,
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_ane.evidence.strict_json import parse, pretty
from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.mlprogram.strict_json import strict

TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://github.com/pytest-ane/pytest-ane/evidence/{}/v1"
_GATES = {_PREDICATE.format(name): name for name, gate in GATES.items() if gate.recordable}
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Statement:
    """What was measured, of which bytes, where and when.

    Attributes:
        gate: whose question the measurement answers.
        subject: qualified shard id (`smollm2:L01`); for behaviour the model (`smollm2`).
        files: SHA-256 of the artifact's files by `<shard>/<path>`: `L01/Manifest.json`.
        environment: chip, operating system, compute units and versions, as the backend tells them.
        asked: probes, prompts, reference and whatever else decides what is measured, as `plain`
            makes it.
        recorded: when, in UTC and whole seconds.
        measurement: the numbers, from which every verdict is derived again.
        commit: of the checkout it was measured in; empty outside of git.
        gate_file: SHA-256 of the gate's own file.
        counter: 1 for the first record of a gate and subject, then one more each time.
    """

    gate: str
    subject: str
    files: Mapping[str, str]
    environment: Mapping[str, str]
    asked: Mapping[str, Any]
    recorded: datetime
    measurement: Any
    commit: str = ""
    gate_file: str = ""
    counter: int = 1

    def __post_init__(self) -> None:
        gate = GATES.get(self.gate)
        if gate is None or not isinstance(self.measurement, gate.measurement):
            raise ValueError(f"a {type(self.measurement).__name__} answers no {self.gate} gate")

    def to_json(self) -> str:
        """The file's text; ends with a newline."""
        data = {
            "_type": TYPE,
            "predicateType": _PREDICATE.format(self.gate),
            "subject": [
                {"name": name, "digest": {"sha256": digest}}
                for name, digest in sorted(self.files.items())
            ],
            "predicate": {
                "shard": self.subject,
                "recorded": _written(self.recorded),
                **({"commit": self.commit} if self.commit else {}),
                **({"gate_file": self.gate_file} if self.gate_file else {}),
                **({"counter": self.counter} if self.counter > 1 else {}),
                "environment": dict(self.environment),
                "asked": plain(self.asked),
                "measurement": to_data(self.gate, self.measurement),
            },
        }
        return pretty(sealed(data)) + "\n"

    @classmethod
    def from_json(cls, data: bytes) -> Statement:
        """Read a file; whatever is in it, the judges can read the measurement.

        Raises:
            EvidenceError: too large, damaged, edited after it was recorded, or no evidence.
        """
        top = _object(parse(data), "the file")
        if top.get("_type") != TYPE:
            raise EvidenceError(f"is no in-toto Statement ({TYPE})")
        gate = _GATES.get(_text(top.get("predicateType"), "predicateType"))
        if gate is None:
            raise EvidenceError(f"predicateType {top['predicateType']!r} is none of this version's")
        predicate = _object(top.get("predicate"), "predicate")
        if sealed(top)["predicate"]["sha256"] != predicate.get("sha256"):
            raise EvidenceError("was edited after it was recorded: its own sha256 does not fit")
        environment = {
            key: _text(value, f"environment.{key}")
            for key, value in _object(predicate.get("environment"), "environment").items()
        }
        measured = _object(predicate.get("measurement"), "measurement")
        return cls(
            gate=gate,
            subject=_text(predicate.get("shard"), "shard"),
            files=_files(top.get("subject")),
            environment=environment,
            asked=_object(predicate.get("asked"), "asked"),
            recorded=_time(_text(predicate.get("recorded"), "recorded")),
            measurement=from_data(gate, measured, environment),
            commit=_hex(predicate.get("commit", ""), "commit"),
            gate_file=_hex(predicate.get("gate_file", ""), "gate_file"),
            counter=_counter(predicate.get("counter", 1)),
        )


def to_data(gate: str, measurement: Any) -> dict[str, Any]:
    """JSON data of a measurement without provenance; what has its default value is left out."""
    made = _adapter(gate).dump_python(measurement, mode="json", exclude_defaults=True)
    made.pop("provenance", None)
    data: dict[str, Any] = strict(made)
    return data


def from_data(gate: str, data: Mapping[str, Any], provenance: Mapping[str, str]) -> Any:
    """The measurement that `to_data` made data of; unknown fields are ignored.

    The records check themselves; here only types are held against them.

    Raises:
        EvidenceError: a field is missing, of another kind, or contradicts another.
    """
    try:
        return _adapter(gate).validate_python({**data, "provenance": provenance})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        says = first["msg"].removeprefix("Value error, ")
        raise EvidenceError(f"{_field(first['loc'])}: {says[:1].lower()}{says[1:]}") from None


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON makes of a value: two are the same question if these are equal."""
    made: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return made


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """A statement's data with the digest of all else in it as `predicate.sha256`."""
    predicate = {key: value for key, value in data["predicate"].items() if key != "sha256"}
    digest = key_digest({**data, "predicate": predicate})
    return {**data, "predicate": {**predicate, "sha256": digest}}


def _files(value: Any) -> dict[str, str]:
    if not isinstance(value, list) or not value:
        raise EvidenceError("subject is no list of files")
    files = {}
    for entry in value:
        one = _object(entry, "a file of subject")
        name = _text(one.get("name"), "the name of a file")
        digest = _text(_object(one.get("digest"), f"digest of {name}").get("sha256"), "sha256")
        if not _SHA256.fullmatch(digest):
            raise EvidenceError(f"the sha256 of {name} is not 64 hexadecimal digits")
        if name in files:
            raise EvidenceError(f"subject names {name} twice")
        files[name] = digest
    return files


def _written(time: datetime) -> str:
    utc = time.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None)
    return f"{utc.isoformat()}Z"


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise EvidenceError(f"recorded {text!r} is no time such as 2026-11-21T16:00:00Z") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EvidenceError(f"{what} is no JSON object")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise EvidenceError(f"{what} is no text")
    return value


@cache
def _adapter(gate: str) -> TypeAdapter[Any]:
    return TypeAdapter(GATES[gate].measurement)


def _hex(value: Any, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{0,64}", value):
        raise EvidenceError(f"{what} is no digest")
    return value


def _counter(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise EvidenceError("counter is no whole number from 1 on")
    return value


def _field(path: tuple[int | str, ...]) -> str:
    """`measurement.comparisons[0].cosines`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(["measurement", *parts])
