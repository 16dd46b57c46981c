"""Where a gate's measurement comes from: measured here, and recorded; or verified evidence.

A test keeps what it measured in its stash (`note`); its report carries that as one line of JSON to
the process that started the run, which appends it to the files of `--ane-report`.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import without_ane
from pytest_ane.gates.base import ShardContext, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.manifest import Policy, Shard
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import AneError, EvidenceError, UnprovenError
from pytest_ane.plugin._items import gate_of, part_of, subject_of
from pytest_ane.project.stack import Stack
from pytest_ane.project.suite import in_use
from pytest_ane.records.record import Record, changes, machine, plain, question
from pytest_ane.records.store import fetch, push, systems_of
from pytest_ane.records.verify import Answer, EvidenceFile, answers, others, worst

if TYPE_CHECKING:
    from pytest_ane.cluster.client import Cluster
    from pytest_ane.cluster.tasks import Answer as WorkerAnswer
    from pytest_ane.plugin._workspace import Workspace

ENVIRONMENT = pytest.StashKey[dict[str, str]]()
"""Where a test's measurement was made, if not here."""
RECORDED = pytest.StashKey[Record | None]()
"""What a test judges, if it was recorded."""
SYSTEMS = pytest.StashKey[Sequence[Finding]]()
"""What the systems of the policy came to of which a test judges nothing."""
NOTED = "ane.evidence.file"
"""The property of a test that says what became of a file of evidence."""

MEASURED = pytest.StashKey[Record]()
"""What a test measured, or the evidence that it judges, where it is to be kept."""
LINE = pytest.StashKey[bytes]()
"""A test's record, packed: reports carry it to the process that writes."""


def note(
    item: pytest.Item,
    space: Workspace,
    verdict: Verdict,
    recorded: Record | None,
    machine: Mapping[str, str],
) -> None:
    """Keep a test's record where the run has a file for it; limits of figures are left out."""
    if not space.keeps_records or not isinstance(item, pytest.Function):
        return
    gate, name = gate_of(item), subject_of(item)
    known = GATES.get(gate)
    derived = known.derived if known else ()
    figures = {f.name: f.value for f in verdict.figures if f.name not in derived}
    measured = recorded or item.stash.get(MEASURED, None)
    if measured is not None and (measured.gate, measured.subject) == (gate, name):
        record = measured
    else:
        record = Record(
            gate=gate,
            subject=name,
            time=datetime.now(timezone.utc),
            files=space.known_files(name),
            asked=_asked(space, gate, name),
            commit=space.commit,
        )
    facts: dict[str, Any] = {**record.environment, **machine}
    if recorded is None:
        facts |= {**space.identity, "python": platform.python_version()}
    # A record says of itself which arithmetic it was computed in, not what its verdict compares.
    facts |= {k: v for k, v in verdict.provenance.items() if k != "arithmetic"}
    runs = known is None or known.by_device or "backend" in verdict.provenance
    environment = {key: str(value) for key, value in facts.items()
                   if str(value) and key != "artifact" and (runs or key != "backend")}  # fmt: skip
    record = replace(record, part=part_of(item), figures=figures, environment=environment)
    item.stash[LINE] = zlib.compress(record.to_line())


def _asked(space: Workspace, gate: str, name: str) -> dict[str, Any]:
    """Empty for a gate of the user's own, and where nobody can tell."""
    subjects: tuple[Subject, ...] = (*space.shards, *space.manifest.models)
    subject = next((subject for subject in subjects if subject.qualified == name), None)
    if gate not in GATES or subject is None:
        return {}
    model = space.manifest.model_of(name.partition(":")[0])
    try:
        return plain(question(gate, subject, model, lambda: space.model(model.name).identity))
    except (AneError, OSError):
        return {}


def _on_ane(backend: CoreMLBackend, here: Callable[[], Any]) -> Any:
    backend.require_ane()
    return here()


@dataclass(eq=False)
class MeasurementSource:
    """Measurements of one shard, or of one model's stack; what was recorded is noted on `item`.

    `context` is what measuring takes, `files` the digests of a package that is not to be opened;
    `record` is the evidence that is judged, `environment` where the last measurement was made.
    """

    space: Workspace
    subject: Shard | Stack
    item: pytest.Item | None = None
    context: ShardContext | None = None
    files: Mapping[str, str] | None = None
    record: Record | None = field(default=None, init=False)
    environment: dict[str, str] = field(default_factory=dict, init=False)

    def of(self, gate: str, here: Callable[[], Any] | None = None) -> Any:
        """Made `here` on a device, else recorded; `UnprovenError` where no required one counts."""
        measurement = self._measurement(gate, here or self._measure(gate))
        if self.item is not None and self.space.keeps_records:
            known = GATES[gate]
            if self.record is not None:
                self.item.stash[MEASURED] = self.record
            elif known.recordable and isinstance(measurement, known.measurement):
                self.item.stash[MEASURED] = self._stated(gate, measurement)
        return measurement

    def _measurement(self, gate: str, here: Callable[[], Any]) -> Any:
        known, backend, recording = GATES[gate], self.space.backend, self.space.recording
        if known.by_device and isinstance(backend, CoreMLBackend):
            here = partial(_on_ane, backend, here)
        if not known.recordable:
            return here()
        if backend.on_device or (recording and not known.by_device):
            measured = self._recording(gate, here) if recording else here()
            return self._beside_systems(gate, measured)
        if recording:  # On a machine without an ANE, for which there is no evidence to be had.
            measurement = here()
            self._note("not recorded", gate, [f"measured on {without_ane(backend.provenance())}"])
            return measurement
        if self._policy.requires_evidence(gate):
            cluster = self._cluster
            return self._proven_on_worker(cluster, gate) if cluster else self._proven(gate)
        if known.recorded_first:
            try:
                return self._proven(gate)
            except UnprovenError as error:
                self._tell(gate, ())
                if error.kind != "missing":
                    self._note("not used", gate, [str(error)])
        return here()

    def _measure(self, gate: str) -> Callable[[], Any]:
        subject = self.subject
        if (cluster := self._cluster) is not None:
            return lambda: self._received(cluster.measure(GATES[gate].test(self._asked_of)))
        if isinstance(subject, Shard):
            context = self.context or self.space.open_shard(subject)
            return lambda: GATES[gate].measure(context)
        return lambda: GATES[gate].measure(subject)

    @property
    def _cluster(self) -> Cluster | None:
        return None if getattr(self.context, "is_own", False) else self.space.cluster

    def _received(self, answer: WorkerAnswer) -> Any:
        self.environment = answer.environment
        self.space.notes += [f"{answer.label}: {note}" for note in answer.notes]
        if self.item is not None:
            self.item.stash[ENVIRONMENT] = answer.environment
        return answer.measurement

    def _proven_on_worker(self, cluster: Cluster, gate: str) -> Any:
        """As `_proven`; what no evidence tells that counts, a Neural Engine of a worker does."""
        absent: UnprovenError | None = None
        for system in self.lacking(gate):
            try:
                answer = cluster.measure_on_device(gate, self._name, system)
                self._write(gate, self._received(answer), system)
            except UnprovenError as error:
                absent = error
        try:
            return self._proven(gate)
        except UnprovenError as error:
            if absent is None:
                raise
            reason = str(error).partition("; ")[0]
            raise UnprovenError(f"{reason}, and {absent}", error.kind) from None

    def lacking(self, gate: str) -> list[str]:
        """The policy's systems of which no recorded evidence of a gate counts."""
        found = answers(gate, self._asked_of, partial(self._verified, gate, signed=False))
        return [answer.system for answer in found if answer.error is not None]

    def _recording(self, gate: str, here: Callable[[], Any]) -> Any:
        if (system := self._system(gate)) is None:
            systems = ", ".join(systems_of(gate, self._asked_of))
            says = f"this Mac runs {self._os}, and policy.evidence.systems asks for {systems}"
            self._note("not recorded", gate, [says])
            return here()
        try:
            valid = self._verified(gate, system, signed=False)
        except UnprovenError as error:
            state = "missing" if error.kind == "missing" else "stale"
        else:
            if "all" not in self.space.recording:
                self._note("kept", gate, system=system)
                return self._judged(valid)
            state = "all"
        measurement = here()
        if {state, "all"} & self.space.recording:
            self._write(gate, measurement, system)
        else:
            self._note(f"left {state}", gate, system=system)
        return measurement

    def _proven(self, gate: str) -> Any:
        return self._deciding(gate, answers(gate, self._asked_of, partial(self._verified, gate)))

    def _beside_systems(self, gate: str, measured: Any) -> Any:
        """The worst of what was measured on this system, and of evidence of the policy's others."""
        systems = systems_of(gate, self._asked_of)
        if systems == ("",) or not self._policy.requires_evidence(gate):
            return measured
        here, known = self._system(gate), GATES[gate]
        verdict = known.judge(measured, known.policy(self._policy), self._asked_of)
        now = Answer(here or self._os, verdict)
        rest = [system for system in systems if system != here]
        found = [now, *answers(gate, self._asked_of, partial(self._verified, gate), rest)]
        if worst(found) is now:
            self._tell(gate, found)
            return measured
        return self._deciding(gate, found)

    def _deciding(self, gate: str, found: Sequence[Answer]) -> Any:
        """The evidence of the system that decides; the summary names all machines."""
        decides = worst(found)
        self._tell(gate, found)
        if decides.record is None:
            assert decides.error is not None
            # Nothing recorded is judged, though this system's own evidence counts.
            self.record = None
            if self.item is not None:
                self.item.stash[RECORDED] = None
            raise decides.error
        return self._judged(decides.record)

    def _tell(self, gate: str, found: Sequence[Answer]) -> None:
        if self.item is not None:
            self.item.stash[SYSTEMS] = others(found) if found else ()
        for answer in found:
            if answer.record is not None:
                self._note("verified", gate, [machine(answer.record)], answer.system)

    def _system(self, gate: str) -> str | None:
        """The policy's system that this machine is of; '' where it names none, None for another."""
        if systems_of(gate, self._asked_of) == ("",):
            return ""
        return self._policy.evidence.system_of(self._os) or None

    @property
    def _os(self) -> str:
        return str(self.space.backend.provenance().get("os", "unknown system"))

    def _judged(self, record: Record) -> Any:
        """The recorded measurement; its verdict will name where and when it was recorded."""
        self.record = record
        if self.item is not None:
            self.item.stash[RECORDED] = record
        if not isinstance(self.subject, Shard):
            return record.measurement
        gate, measured = GATES[record.gate], record.measurement
        if self._cluster is not None:
            return self._cluster.beside(gate.name, self._name, measured)
        return gate.beside(measured, self.context or self.space.open_shard(self.subject))

    def _write(self, gate: str, measurement: Any, system: str) -> None:
        if self._files_now() != self._files:
            raise EvidenceError(
                f"{self._name} changed while its {gate} was measured, so nothing was recorded; "
                "run again when nothing else writes it."
            )
        store, new = self.space.evidence, self._stated(gate, measurement)
        what, lines = "recorded", list[str]()
        if store.path(gate, self._name, system).exists():
            what = "recorded again"
            try:
                old = Record.from_json(store.read(gate, self._name, system) or b"")
                lines = [*changes(old, new)]
            except EvidenceError as error:
                lines = [f"what was there could not be read: {error}"]
        store.write(new, system)
        if (shared := self.space.cache.store) is not None:
            push(shared, store, new, system)
        self._note(what, gate, lines, system)
        try:
            self._verified(gate, system, signed=False)
        except UnprovenError as error:
            self._note("does not count", gate, [str(error)], system)

    def _stated(self, gate: str, measurement: Any) -> Record:
        root, counter = self.space.manifest.path.absolute().parent, 1
        with suppress(EvidenceError):
            old = self.space.evidence.read(gate, self._name, self._system(gate) or "")
            counter = Record.from_json(old or b"").counter + 1
        environment = self.environment or self.space.backend.provenance()
        if getattr(measurement, "arithmetic", "typed") == "ane":
            environment = {**environment, "arithmetic": SIMULATED}
        return Record(
            gate=gate,
            subject=self._name,
            files=self._files,
            environment=environment,
            asked=self._asked(gate),
            time=datetime.now(timezone.utc).replace(microsecond=0),
            measurement=measurement,
            commit=self.space.commit,
            gate_file=file_digest(in_use(root, f"test_{gate}.py")),
            counter=counter,
        )

    def _verified(self, gate: str, system: str, *, signed: bool = True) -> Record:
        try:
            return self._verify(gate, system, signed=signed)
        except UnprovenError as error:
            if error.kind != "missing" or not self._fetched(gate, system):
                raise
        return self._verify(gate, system, signed=signed)

    def _fetched(self, gate: str, system: str) -> bool:
        store, shared = self.space.evidence, self.space.cache.store
        if shared is None or store.path(gate, self._name, system).exists():
            return False
        if not fetch(shared, store, gate, self._name, self._files, self._asked(gate), system):
            return False
        self._note("fetched", gate, system=system)
        return True

    def _verify(self, gate: str, system: str, *, signed: bool) -> Record:
        policy = self._policy.evidence
        if not signed:
            # Signatures are made of what was recorded.
            policy = policy.model_copy(update={"signers": ()})
        artifact = None
        if self.files is None and isinstance(self.subject, Shard):
            artifact = self.space.artifact(self.subject)
        return EvidenceFile.at(self.space.evidence, gate, self._asked_of, system).verified(
            policy=policy,
            now=datetime.now(timezone.utc),
            files=self._files,
            asked=self._asked(gate),
            artifact=artifact,
        )

    def _asked(self, gate: str) -> dict[str, Any]:
        model = self.space.manifest.model_of(self._name.partition(":")[0])
        return question(gate, self._asked_of, model, lambda: self.space.model(model.name).identity)

    @property
    def _asked_of(self) -> Subject:
        return self.subject if isinstance(self.subject, Shard) else self.subject.subject

    @cached_property
    def _files(self) -> dict[str, str]:
        return self._files_now()

    def _files_now(self) -> dict[str, str]:
        if isinstance(self.subject, Shard):
            shard = self.subject
            if (known := self.files) is not None:
                return {f"{shard.id}/{name}": digest for name, digest in known.items()}
            return self.space.files_of(shard)
        files = (self.space.files_of(shard) for shard, _ in self.subject.artifacts)
        return {name: digest for each in files for name, digest in each.items()}

    @property
    def _policy(self) -> Policy:
        return self._asked_of.policy

    @property
    def _name(self) -> str:
        return self.subject.qualified if isinstance(self.subject, Shard) else self.subject.model

    def _note(self, what: str, gate: str, lines: Sequence[str] = (), system: str = "") -> None:
        if self.item is not None:
            store = self.space.evidence
            file = store.path(gate, self._name, system).relative_to(store.folder).as_posix()
            self.item.user_properties.append((NOTED, "\n".join([what, file, *lines])))
