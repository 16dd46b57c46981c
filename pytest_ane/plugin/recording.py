"""Where a gate's measurement comes from: measured here, and recorded; or verified evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import without_ane
from pytest_ane.gates.base import ShardContext, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding
from pytest_ane.make import Artifact
from pytest_ane.manifest import Policy, Shard
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError
from pytest_ane.plugin._records import MEASURED
from pytest_ane.project.stack import Stack
from pytest_ane.project.suite import in_use
from pytest_ane.records.record import Record, changes, machine, question
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


def _on_ane(backend: CoreMLBackend, here: Callable[[], Any]) -> Any:
    backend.require_ane()
    return here()


class MeasurementSource:
    """Measurements of one shard, or of one model's stack.

    Args:
        space: the run's workspace.
        subject: a shard, or a whole model.
        item: the test that asks; what was recorded, or not used, is noted on it.
        context: what measuring takes; None for what the run opens.
        files: digests of the shard's package, where it is not to be opened: then evidence that
            has to be compared with the package counts.

    Attributes:
        record: the recorded evidence that is judged, if any is.
        environment: the backend's provenance where the last measurement was made.
    """

    def __init__(
        self,
        space: Workspace,
        subject: Shard | Stack,
        item: pytest.Item | None = None,
        context: ShardContext | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._context, self._known_files = context, files
        self._space = space
        self._subject = subject
        self._item = item
        self.record: Record | None = None
        self.environment: dict[str, str] = {}

    def of(self, gate: str, here: Callable[[], Any] | None = None) -> Any:
        """A gate's measurement.

        On a device it is made by `here`, and kept as a file with `--ane-record`. Elsewhere it is
        what was recorded, where the policy requires a device; a plan that was recorded also goes
        before a forecast. Everything else is measured here.

        Args:
            gate: its name.
            here: measures; None for the gate's own way.

        Raises:
            UnprovenError: the policy requires evidence, and there is none that counts.
        """
        measurement = self._measurement(gate, here or self._measure(gate))
        if self._item is not None and self._space.keeps_records:
            known = GATES[gate]
            if self.record is not None:
                self._item.stash[MEASURED] = self.record
            elif known.recordable and isinstance(measurement, known.measurement):
                self._item.stash[MEASURED] = self._stated(gate, measurement)
        return measurement

    def _measurement(self, gate: str, here: Callable[[], Any]) -> Any:
        known, backend, recording = GATES[gate], self._space.backend, self._space.recording
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
            return self._proven_on_worker(gate) if self._cluster else self._proven(gate)
        if GATES[gate].recorded_first:
            try:
                return self._proven(gate)
            except UnprovenError as error:
                self._tell(())
                if error.kind != "missing":
                    self._note("not used", gate, [str(error)])
        return here()

    def _measure(self, gate: str) -> Callable[[], Any]:
        subject = self._subject
        if (cluster := self._cluster) is not None:
            return lambda: self._received(cluster.measure(GATES[gate].test(self._asked_of)))
        if isinstance(subject, Shard):
            context = self._opened(subject)
            return lambda: GATES[gate].measure(context)
        return lambda: GATES[gate].measure(subject)

    @property
    def _cluster(self) -> Cluster | None:
        """Whose workers measure; a project's own fixtures are here alone."""
        return None if getattr(self._context, "is_own", False) else self._space.cluster

    def _received(self, answer: WorkerAnswer) -> Any:
        """What a worker measured; where, and what it had to tell, is kept."""
        self.environment = answer.environment
        self._space.notes += [f"{answer.label}: {note}" for note in answer.notes]
        if self._item is not None:
            self._item.stash[ENVIRONMENT] = answer.environment
        return answer.measurement

    def _proven_on_worker(self, gate: str) -> Any:
        """As `_proven`; what no evidence tells that counts, a Neural Engine of a worker does."""
        absent: UnprovenError | None = None
        for system in self.lacking(gate):
            try:
                self._measure_on_worker(gate, system)
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
        return [
            system for system in systems_of(gate, self._asked_of)
            if not self._counts(gate, system)
        ]  # fmt: skip

    def _counts(self, gate: str, system: str) -> bool:
        try:
            return bool(self._verified(gate, system, signed=False))
        except UnprovenError:
            return False

    def _measure_on_worker(self, gate: str, system: str) -> None:
        """Record what a worker's Neural Engine tells."""
        assert self._cluster is not None
        answer = self._cluster.measure_on_device(gate, self._name, system)
        self._write(gate, self._received(answer), system)

    def _opened(self, shard: Shard) -> ShardContext:
        return self._context or self._space.open_shard(shard)

    def _recording(self, gate: str, here: Callable[[], Any]) -> Any:
        """Measure, and write what `--ane-record` names; what is valid need not be done again."""
        system = self._system(gate)
        if system is None:
            systems = ", ".join(systems_of(gate, self._asked_of))
            says = f"this Mac runs {self._os}, and policy.evidence.systems asks for {systems}"
            self._note("not recorded", gate, [says])
            return here()
        try:
            valid = self._verified(gate, system, signed=False)
        except UnprovenError as error:
            state = "missing" if error.kind == "missing" else "stale"
        else:
            if "all" not in self._space.recording:
                self._note("kept", gate, system=system)
                return self._judged(valid)
            state = "all"
        measurement = here()
        if {state, "all"} & self._space.recording:
            self._write(gate, measurement, system)
        else:
            self._note(f"left {state}", gate, system=system)
        return measurement

    def _proven(self, gate: str) -> Any:
        """What was recorded, if it counts: of several systems on the worst."""
        found = answers(gate, self._asked_of, partial(self._verified, gate))
        return self._deciding(gate, found)

    def _beside_systems(self, gate: str, measured: Any) -> Any:
        """What was measured stands for this system; of the policy's others evidence does.

        What the worst of them came to is judged.
        """
        systems = systems_of(gate, self._asked_of)
        if systems == ("",) or not self._policy.requires_evidence(gate):
            return measured
        here, known = self._system(gate), GATES[gate]
        verdict = known.judge(measured, known.policy(self._policy), self._asked_of)
        now = Answer(here or self._os, verdict)
        rest = [system for system in systems if system != here]
        recorded = answers(gate, self._asked_of, partial(self._verified, gate), rest)
        found = [now, *recorded]
        if worst(found) is now:
            self._tell(others(found))
            self._note_verified(gate, recorded)
            return measured
        return self._deciding(gate, found)

    def _deciding(self, gate: str, found: Sequence[Answer]) -> Any:
        """The evidence of the system that decides; the summary names all machines."""
        decides = worst(found)
        self._tell(others(found))
        self._note_verified(gate, found)
        if decides.record is None:
            assert decides.error is not None
            self._forget()
            raise decides.error
        return self._judged(decides.record)

    def _forget(self) -> None:
        """Nothing that was recorded is judged, though this system's own evidence counts."""
        self.record = None
        if self._item is not None:
            self._item.stash[RECORDED] = None

    def _note_verified(self, gate: str, found: Sequence[Answer]) -> None:
        for answer in found:
            if answer.record is not None:
                self._note("verified", gate, [machine(answer.record)], answer.system)

    def _tell(self, findings: Sequence[Finding]) -> None:
        """Keep on the test what other systems came to, for its verdict."""
        if self._item is not None:
            self._item.stash[SYSTEMS] = findings

    def _system(self, gate: str) -> str | None:
        """The one of the policy's systems that this machine stands for; '' where it names none.

        None where this machine is of none of them.
        """
        if systems_of(gate, self._asked_of) == ("",):
            return ""
        return self._policy.evidence.system_of(self._os) or None

    @property
    def _os(self) -> str:
        return str(self._space.backend.provenance().get("os", "unknown system"))

    def _judged(self, record: Record) -> Any:
        """The recorded measurement; its verdict will name where and when it was recorded."""
        self.record = record
        if self._item is not None:
            self._item.stash[RECORDED] = record
        if not isinstance(self._subject, Shard):
            return record.measurement
        gate, measured = GATES[record.gate], record.measurement
        if self._cluster is not None:
            return self._cluster.beside(gate.name, self._name, measured)
        return gate.beside(measured, self._opened(self._subject))

    def _write(self, gate: str, measurement: Any, system: str) -> None:
        """Keep a measurement; what changes is said before anything is overwritten.

        Raises:
            EvidenceError: an artifact changed while it was measured, so that nobody knows of which
                bytes this is, or the folder cannot be written.
        """
        if self._files_now() != self._files:
            raise EvidenceError(
                f"{self._name} changed while its {gate} was measured, so nothing was recorded; "
                "run again when nothing else writes it."
            )
        store = self._space.evidence
        new = self._stated(gate, measurement)
        what, lines = "recorded", list[str]()
        if store.path(gate, self._name, system).exists():
            what, lines = "recorded again", list(self._changes(gate, new, system))
            file = self._file(gate, system)
            if lines and self._say([f"recording again {file}", *(f"  {line}" for line in lines)]):
                lines = []
        store.write(new, system)
        if (shared := self._space.cache.store) is not None:
            push(shared, store, new, system)
        self._note(what, gate, lines, system)
        try:
            self._verified(gate, system, signed=False)
        except UnprovenError as error:
            self._note("does not count", gate, [str(error)], system)

    def _stated(self, gate: str, measurement: Any) -> Record:
        """A measurement made now, with what else a record holds."""
        root = self._space.manifest.path.absolute().parent
        environment = self.environment or self._space.backend.provenance()
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
            commit=self._space.commit,
            gate_file=file_digest(in_use(root, f"test_{gate}.py")),
            counter=self._counter(gate, self._system(gate) or ""),
        )

    def _counter(self, gate: str, system: str) -> int:
        """One more than the record that lies there has; a damaged one starts again."""
        data = self._space.evidence.read(gate, self._name, system) or b""
        try:
            return Record.from_json(data).counter + 1
        except EvidenceError:
            return 1

    def _changes(self, gate: str, new: Record, system: str) -> Iterator[str]:
        try:
            old = Record.from_json(self._space.evidence.read(gate, self._name, system) or b"")
        except EvidenceError as error:
            yield f"what was there could not be read: {error}"
        else:
            yield from changes(old, new)

    def _verified(self, gate: str, system: str, *, signed: bool = True) -> Record:
        """Evidence that counts; what the folder lacks is fetched from the store."""
        try:
            return self._verify(gate, system, signed=signed)
        except UnprovenError as error:
            if error.kind != "missing" or not self._fetched(gate, system):
                raise
        return self._verify(gate, system, signed=signed)

    def _fetched(self, gate: str, system: str) -> bool:
        store, shared = self._space.evidence, self._space.cache.store
        if shared is None or store.path(gate, self._name, system).exists():
            return False
        asked = self._asked(gate)
        if not fetch(shared, store, gate, self._name, self._files, asked, system):
            return False
        self._note("fetched", gate, system=system)
        return True

    def _verify(self, gate: str, system: str, *, signed: bool) -> Record:
        policy = self._policy.evidence
        if not signed:
            # Signatures are made of what was recorded.
            policy = policy.model_copy(update={"signers": ()})
        file = EvidenceFile.at(self._space.evidence, gate, self._asked_of, system)
        return file.verified(
            policy=policy,
            now=datetime.now(timezone.utc),
            files=self._files,
            asked=self._asked(gate),
            artifact=self._artifact,
        )

    def _asked(self, gate: str) -> dict[str, Any]:
        model = self._space.manifest.model_of(self._name.partition(":")[0])
        return question(gate, self._asked_of, model, lambda: self._space.model(model.name).identity)

    @property
    def _asked_of(self) -> Subject:
        """The shard or the model, as the test asks about it."""
        return self._subject if isinstance(self._subject, Shard) else self._subject.subject

    @property
    def _artifact(self) -> Artifact | None:
        subject = self._subject
        if self._known_files is not None or not isinstance(subject, Shard):
            return None
        return self._space.artifact(subject)

    @cached_property
    def _files(self) -> dict[str, str]:
        """Digests of the artifact's files, or of those of all shards, before it is measured."""
        return self._files_now()

    def _files_now(self) -> dict[str, str]:
        if isinstance(self._subject, Shard):
            shard = self._subject
            if (known := self._known_files) is not None:
                return {f"{shard.id}/{name}": digest for name, digest in known.items()}
            return self._space.files_of(shard)
        files = (self._space.files_of(shard) for shard, _ in self._subject.artifacts)
        return {name: digest for each in files for name, digest in each.items()}

    @property
    def _policy(self) -> Policy:
        return self._asked_of.policy

    @property
    def _name(self) -> str:
        return self._subject.qualified if isinstance(self._subject, Shard) else self._subject.model

    def _note(self, what: str, gate: str, lines: Sequence[str] = (), system: str = "") -> None:
        """Note on the test what became of a file, for the summary."""
        if self._item is not None:
            note = "\n".join([what, self._file(gate, system), *lines])
            self._item.user_properties.append((NOTED, note))

    def _say(self, lines: Sequence[str]) -> bool:
        """Say something at once; not under `-q`, in a worker, or where nobody listens."""
        if self._item is None or self._item.config.get_verbosity() < 0:
            return False
        plugins = self._item.config.pluginmanager
        reporter, capture = map(plugins.getplugin, ("terminalreporter", "capturemanager"))
        if reporter is None:
            return False
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            reporter.ensure_newline()
            for line in lines:
                reporter.write_line(line)
        return True

    def _file(self, gate: str, system: str) -> str:
        store = self._space.evidence
        return store.path(gate, self._name, system).relative_to(store.folder).as_posix()
