"""Whether a recorded measurement may stand for one made now: digests first, then the policy.

No opinion is read from a file: what passes here is judged anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from pytest_ane.backends.coreml import without_ane
from pytest_ane.evidence.judge import simulated
from pytest_ane.evidence.signatures import same_value, signed_payloads, signing_command
from pytest_ane.evidence.statement import Statement, plain, sealed
from pytest_ane.evidence.store import Store, read_file, without_system
from pytest_ane.evidence.strict_json import parse
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact
from pytest_ane.manifest import EvidencePolicy
from pytest_ane.manifest.evidence import WITH_ANE, covers
from pytest_ane.manifest.problems import label, toml_value
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError, UnprovenKind

DEVICES = ("coreml",)
"""Backends that ask a device; what the CPU executor computes is no evidence of one."""
UNSIGNED: frozenset[UnprovenKind] = frozenset(("unsigned", "signer", "signature", "library"))
"""What recording again does not help: the file has to be signed, or the signature read."""
SKEW = timedelta(minutes=10)
"""How far two machines' clocks may be apart."""


def verify(
    store: Store,
    gate: str,
    subject: Subject,
    *,
    files: Mapping[str, str],
    asked: Mapping[str, Any],
    policy: EvidencePolicy,
    now: datetime,
    artifact: Artifact | None = None,
    system: str = "",
) -> Statement:
    """The statement of a gate and subject, if it is of these bytes and the policy takes it.

    Args:
        store: where evidence is kept.
        gate: whose evidence is wanted.
        subject: a shard, or for gates of whole models the model.
        files: SHA-256 of the artifact's files as they are now, `files_of`.
        asked: what is asked now, `question`.
        policy: which evidence counts.
        now: with a time zone.
        artifact: the shard's package, which a plan is counted against.
        system: whose evidence is wanted, as `policy.systems` names it; empty where that is absent.

    Raises:
        UnprovenError: it proves nothing; one sentence, with the command that puts it right.
        ManifestError: a signer of the policy is no public key.
    """
    name = subject.qualified
    record = Record(store.path(gate, name, system), gate, name, system)
    data = record.content()
    found = record.statement(data)
    for kind, says in record.complaints(found, files, plain(asked), policy, now):
        raise record.refused(kind, says)
    record.require_whole(found, subject, artifact)
    record.require_signed(data, policy)
    return found


@dataclass(frozen=True)
class Record:
    """An evidence file that is looked at; `system` is what its place is for."""

    path: Path
    gate: str
    subject: str
    system: str = ""

    def content(self) -> bytes:
        """What is in the file; `UnprovenError` where there is none."""
        try:
            data = read_file(self.path)
        except EvidenceError as error:
            raise self._damaged(error) from None
        if data is None:
            raise self.refused("missing", "is missing")
        return data

    def statement(self, data: bytes) -> Statement:
        """The statement, of the right subject; `UnprovenError` where it is not whole."""
        try:
            found = Statement.from_json(data)
        except EvidenceError as error:
            if _edited(data):
                raise self.refused("edited", "was edited after it was recorded") from None
            raise self._damaged(error) from None
        if (found.gate, found.subject) != (self.gate, self.subject):
            says = f"is damaged: it is evidence of {found.gate} of {found.subject}"
            raise self.refused("damaged", says)
        return found

    def complaints(
        self,
        found: Statement,
        files: Mapping[str, str],
        asked: Mapping[str, Any],
        policy: EvidencePolicy,
        now: datetime,
    ) -> Iterator[tuple[UnprovenKind, str]]:
        """Reasons to reject a statement (signatures excluded), most severe first."""
        if count := len(names := _changed(found.files, files)):
            yield "stale", f"is of other bytes: {_file(names[0], found.files, files, count)}"
        for path, old, new in differences(found.asked, asked):
            says = f"{path} was {_said(old)}, now is {_said(new)}"
            yield "stale", f"answers another question: {says}"
        yield from _elsewhere(found, policy)
        if self.system and not covers(self.system, system := found.environment.get("os", "")):
            where = f"was recorded on {system or 'unknown system'}"
            yield "os", f"{where}, and stands in the place of {self.system}"
        yield from _untimely(found.recorded, policy, now)

    def require_whole(self, found: Statement, subject: Subject, artifact: Artifact | None) -> None:
        """Raise `UnprovenError` where a statement leaves out something that was asked."""
        lacks = GATES[self.gate].lacks(found.measurement, subject, found.environment, artifact)
        if says := next(lacks, ""):
            raise self.refused("incomplete", says)

    def require_signed(self, data: bytes, policy: EvidencePolicy) -> None:
        """Raise `UnprovenError` where the policy has signers, and none signed these bytes."""
        if policy.signers:
            signed = signed_payloads(self.path, policy.signers)
            if not any(same_value(payload, data) for payload in signed):
                says = "is not what was signed: the file was changed, or recorded again"
                raise self.refused("signature", says)

    def _damaged(self, error: EvidenceError) -> UnprovenError:
        return self.refused("damaged", f"is damaged: {str(error).removeprefix(f'{self.path} ')}")

    def refused(self, kind: UnprovenKind, says: str) -> UnprovenError:
        """The error for a reason to reject, with the command that puts it right."""
        with_system = f" with {self.system}" if self.system else ""
        remedy = f"on a Mac{with_system}, run: {recording_command(self.subject, kind)}"
        if kind == "missing" and self.system and without_system(self.path).exists():
            plain = without_system(self.path).name
            remedy = f"if {plain} is of {self.system}, rename it; else {remedy}"
        if kind in UNSIGNED:
            remedy = f"sign it: {signing_command(self.path)}"
        return UnprovenError(f"{label(self.path)} {says}; {remedy}", kind)


def recording_command(subject: str, kind: UnprovenKind) -> str:
    """What records the evidence of a shard, or of a model, that is not there or no good."""
    shards = quote(subject if ":" in subject else f"{subject}:*")
    which = "missing" if kind == "missing" else "stale"
    return f"pytest --ane-shards={shards} -m gate --ane-record={which}"


def _edited(data: bytes) -> bool:
    """Whether a statement's own digest does not fit it."""
    try:
        top = parse(data)
        return bool(sealed(top)["predicate"]["sha256"] != top["predicate"]["sha256"])
    except (EvidenceError, AttributeError, KeyError, TypeError):
        return False


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _file(name: str, old: Mapping[str, str], new: Mapping[str, str], count: int) -> str:
    """What is the matter with the first file that differs."""
    if name not in new:
        says = "is gone"
    elif name not in old:
        says = "is new"
    else:
        says = f"was {old[name][:8]}, now is {new[name][:8]}"
    return f"{name} {says}" + (f", first of {count} files" if count > 1 else "")


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key of nested tables that differs, such as `probes.seed`, with both values or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _said(value: Any) -> str:
    return "absent" if value is None else toml_value(value)


def _elsewhere(found: Statement, policy: EvidencePolicy) -> Iterator[tuple[UnprovenKind, str]]:
    """Where it was measured, and where it should have been."""
    of, by_device = found.environment.get, GATES[found.gate].by_device
    backend, units = of("backend", ""), of("compute_units", "")
    if by_device and simulated(found):
        yield "simulated", f"was computed by the CPU executor as {SIMULATED}, and no device ran it"
    if by_device and backend not in DEVICES:
        yield "backend", f"was measured by the backend {backend or 'unknown'}, not on a device"
    if by_device and "native" in found.environment:
        yield "replayed", "was answered by a replay, and no device was asked"
    if by_device and (kind := without_ane(found.environment)):
        yield "device", f"was recorded on {kind}, which proves nothing of the ANE"
    if not policy.takes_chip(chip := of("chip", "")):
        yield "chip", _where("on", chip, "chip", policy.chips)
    if not policy.takes_system(system := of("os", "")):
        yield "os", _where("on", system, "system", policy.os)
    wanted = policy.compute_units or (WITH_ANE if by_device else None)
    if wanted is not None and units not in wanted:
        yield "compute-units", _where("with", units, "compute units", wanted)


def _where(how: str, found: str, what: str, wanted: tuple[str, ...] | None) -> str:
    taken = ", ".join(map(repr, wanted or ()))
    return f"was recorded {how} {found or f'unknown {what}'}, and the policy takes {taken}"


def _untimely(
    recorded: datetime, policy: EvidencePolicy, now: datetime
) -> Iterator[tuple[UnprovenKind, str]]:
    if recorded > now + SKEW:
        yield "future", f"was recorded at {recorded:%Y-%m-%d %H:%M} UTC, which is still to come"
    if policy.max_age is not None and now - recorded > policy.max_age:
        yield (
            "age",
            f"was recorded {time_in_words(now - recorded)} ago, on {recorded:%Y-%m-%d}, and the "
            f"policy takes {time_in_words(policy.max_age)} at most",
        )


def time_in_words(time: timedelta) -> str:
    """`90 days`, or below two days `12 hours`."""
    hours = int(time / timedelta(hours=1))
    number, unit = (hours // 24, "day") if hours >= 48 else (hours, "hour")
    return f"{number} {unit}{'' if number == 1 else 's'}"
