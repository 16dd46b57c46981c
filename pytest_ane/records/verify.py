"""Whether recorded evidence may stand for a measurement made now, and what it comes to.

Digests first, then the policy, then signatures; no opinion is read from a file, so what passes here
is judged anew. Where a policy names several systems, each has its evidence, and the gate's verdict
is that of the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from pytest_ane.backends.coreml import without_ane
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Finding, Verdict, nothing
from pytest_ane.make import Artifact
from pytest_ane.manifest import EvidencePolicy
from pytest_ane.manifest.policy import WITH_ANE, covers
from pytest_ane.manifest.problems import label, toml_value
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError, UnprovenKind
from pytest_ane.records._signatures import signed_payloads, signing_command, signs
from pytest_ane.records.record import EDITED, Record, machine, plain, read_file, simulated
from pytest_ane.records.store import Store, systems_of, without_system

UNSIGNED: frozenset[UnprovenKind] = frozenset(("unsigned", "signer", "signature", "library"))
"""What recording again does not help: the file has to be signed, or the signature read."""
SKEW = timedelta(minutes=10)
"""How far two machines' clocks may be apart."""


@dataclass(frozen=True)
class EvidenceFile:
    """A file that may be evidence of a gate and subject; its system as the policy's, or empty."""

    path: Path
    gate: str
    subject: Subject
    system: str = ""

    @classmethod
    def at(cls, store: Store, gate: str, subject: Subject, system: str = "") -> EvidenceFile:
        """The one in a store's place."""
        return cls(store.path(gate, subject.qualified, system), gate, subject, system)

    def verified(
        self, *, policy: EvidencePolicy, now: datetime, files: Mapping[str, str] | None = None,
        asked: Mapping[str, Any] | None = None, artifact: Artifact | None = None,
    ) -> Record:  # fmt: skip
        """Its record, if it is of these bytes and the policy takes it.

        `files_of` the artifact and the `question` of today may be unknown, where nothing is built:
        then they are the record's own. A plan is counted against the artifact.

        Raises:
            UnprovenError: it proves nothing; one sentence, with the command that puts it right.
            ManifestError: a signer of the policy is no public key.
        """
        data = self.content()
        found = self.record(data)
        files = found.files if files is None else files
        asked = plain(found.asked if asked is None else asked)
        for kind, says in self.complaints(found, files, asked, policy, now):
            raise self.refused(kind, says)
        lacks = GATES[self.gate].lacks(found.measurement, self.subject, found.environment, artifact)
        if says := next(lacks, ""):
            raise self.refused("incomplete", says)
        if policy.signers:
            signed = signed_payloads(self.path, policy.signers)
            if not any(signs(payload, data) for payload in signed):
                says = "is not what was signed: the file was changed, or recorded again"
                raise self.refused("signature", says)
        return found

    def content(self) -> bytes:
        """What is in the file; `UnprovenError` where there is none."""
        try:
            data = read_file(self.path)
        except EvidenceError as error:
            raise self._damaged(error) from None
        if data is None:
            raise self.refused("missing", "is missing")
        return data

    def record(self, data: bytes) -> Record:
        """The record, of the right subject; `UnprovenError` where it is not whole."""
        try:
            found = Record.from_json(data)
        except EvidenceError as error:
            if str(error).startswith(EDITED):
                raise self.refused("edited", EDITED) from None
            raise self._damaged(error) from None
        if (found.gate, found.subject) != (self.gate, self.subject.qualified):
            says = f"is damaged: it is evidence of {found.gate} of {found.subject}"
            raise self.refused("damaged", says)
        return found

    def complaints(
        self, found: Record, files: Mapping[str, str], asked: Mapping[str, Any],
        policy: EvidencePolicy, now: datetime,
    ) -> Iterator[tuple[UnprovenKind, str]]:  # fmt: skip
        """Reasons to reject a record (signatures excluded), most severe first."""
        if changed := list(differences(dict(found.files), dict(files))):
            name, old, new = changed[0]
            says = f"was {(old or '')[:8]}, now is {(new or '')[:8]}"
            says = "is new" if old is None else "is gone" if new is None else says
            more = f", first of {len(changed)} files" if len(changed) > 1 else ""
            yield "stale", f"is of other bytes: {name} {says}{more}"
        for path, old, new in differences(found.asked, asked):
            was, now_is = ("absent" if x is None else toml_value(x) for x in (old, new))
            yield "stale", f"answers another question: {path} was {was}, now is {now_is}"
        yield from _elsewhere(found, policy)
        if self.system and not covers(self.system, system := found.environment.get("os", "")):
            where = f"was recorded on {system or 'unknown system'}"
            yield "os", f"{where}, and stands in the place of {self.system}"
        yield from _untimely(found.time, policy, now)

    def _damaged(self, error: EvidenceError) -> UnprovenError:
        return self.refused("damaged", f"is damaged: {str(error).removeprefix(f'{self.path} ')}")

    def refused(self, kind: UnprovenKind, says: str) -> UnprovenError:
        """The error for a reason to reject, with the command that puts it right."""
        with_system = f" with {self.system}" if self.system else ""
        name, which = self.subject.qualified, "missing" if kind == "missing" else "stale"
        shards = quote(name if ":" in name else f"{name}:*")
        command = f"pytest --ane-shards={shards} -m gate --ane-record={which}"
        remedy = f"on a Mac{with_system}, run: {command}"
        if kind == "missing" and self.system and without_system(self.path).exists():
            plain = without_system(self.path).name
            remedy = f"if {plain} is of {self.system}, rename it; else {remedy}"
        if kind in UNSIGNED:
            remedy = f"sign it: {signing_command(self.path)}"
        return UnprovenError(f"{label(self.path)} {says}; {remedy}", kind)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key of nested tables that differs, such as `probes.seed`, with both values or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _elsewhere(found: Record, policy: EvidencePolicy) -> Iterator[tuple[UnprovenKind, str]]:
    of, by_device = found.environment.get, GATES[found.gate].by_device
    backend, units = of("backend", ""), of("compute_units", "")
    if by_device and simulated(found):
        yield "simulated", f"was computed by the CPU executor as {SIMULATED}, and no device ran it"
    if by_device and backend != "coreml":
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


def judge(record: Record, subject: Subject) -> Verdict:
    """The verdict on a verified record of this shard, or of this model; it names its origin."""
    gate = GATES[record.gate]
    return with_origin(gate.judge(record.measurement, gate.policy(subject.policy), subject), record)


def with_origin(verdict: Verdict, record: Record) -> Verdict:
    """A verdict with the origin `recorded 2026-11-21, Apple M4 Max, macOS 26.1, CPU_AND_NE`."""
    origin = ", ".join(filter(None, (f"recorded {record.time:%Y-%m-%d}", machine(record))))
    provenance = dict(verdict.provenance) | dict(record.environment)
    return replace(verdict, origin=origin, provenance=provenance)


@dataclass(frozen=True)
class Answer:
    """What one system comes to: a verdict, on what was recorded there if that counts."""

    system: str
    verdict: Verdict
    record: Record | None = None
    error: UnprovenError | None = None


def answers(
    gate: str, subject: Subject, verified: Callable[[str], Record],
    systems: Iterable[str] | None = None,
) -> list[Answer]:  # fmt: skip
    """Answers of systems, or of all the policy names; `verified` raises `UnprovenError`."""
    found = []
    for system in systems_of(gate, subject) if systems is None else systems:
        try:
            record = verified(system)
        except UnprovenError as error:
            reason, _, remedy = str(error).partition("; ")
            verdict = nothing(gate, subject.qualified, reason, remedy)
            found.append(Answer(system, verdict, error=error))
        else:
            found.append(Answer(system, judge(record, subject), record))
    return found


def worst(found: Sequence[Answer]) -> Answer:
    """The answer that decides: the first that failed, else is unproven, else passed."""
    return min(found, key=lambda answer: STATUSES.index(answer.verdict.status))


def others(found: Sequence[Answer]) -> tuple[Finding, ...]:
    """What the systems came to that do not decide: what keeps each from passing, or a note."""
    decides = worst(found)
    findings: list[Finding] = []
    for answer in found:
        if answer is decides:
            continue
        system, reasons = answer.system, answer.verdict.reasons
        findings += [
            replace(f, reason=f"{system}: {f.reason}", kind=f.kind and f"{f.kind} on {system}",
                    figure="")  # Their figures are not shown.
            for f in reasons
        ] or [Finding("note", f"{system}: passed")]  # fmt: skip
    return tuple(findings)


def combined(found: Sequence[Answer]) -> Verdict:
    """The verdict of the worst system, with what the others came to."""
    verdict = worst(found).verdict
    return replace(verdict, findings=(*verdict.findings, *others(found)))
