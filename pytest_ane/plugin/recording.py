"""Where a gate's measurement comes from: measured here, and recorded; or verified evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import without_ane
from pytest_ane.core.digests import file_digest
from pytest_ane.core.errors import EvidenceError, UnprovenError
from pytest_ane.evidence import Statement, changes
from pytest_ane.evidence.judge import machine
from pytest_ane.evidence.question import files_of, question
from pytest_ane.evidence.verify import verify
from pytest_ane.gates import GATES, ShardContext, Subject
from pytest_ane.manifest import Policy, Shard
from pytest_ane.project.stack import Stack
from pytest_ane.project.suite import in_use

if TYPE_CHECKING:
    from pytest_ane.plugin.workspace import Workspace

RECORDED = pytest.StashKey[Statement]()
"""What a test judges, if it was recorded."""
MEASURED = pytest.StashKey[str | None]()
"""What a test measured, as the ledger of the run holds it."""
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

    Attributes:
        statement: the recorded evidence that is judged, if any is.
    """

    def __init__(
        self,
        space: Workspace,
        subject: Shard | Stack,
        item: pytest.Item | None = None,
        context: ShardContext | None = None,
    ) -> None:
        self._context = context
        self._space = space
        self._subject = subject
        self._item = item
        self.statement: Statement | None = None

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
        if self._item is not None and self._space.ledger:
            self._item.stash[MEASURED] = self._entry(gate, measurement)
        return measurement

    def _entry(self, gate: str, measurement: Any) -> str | None:
        """What the ledger holds of a measurement; None for what nobody need believe."""
        if self.statement is not None:
            return self.statement.to_json()
        known = GATES[gate]
        if not known.recordable or not isinstance(measurement, known.measurement):
            return None
        return self._stated(gate, measurement).to_json()

    def _measurement(self, gate: str, here: Callable[[], Any]) -> Any:
        known, backend, recording = GATES[gate], self._space.backend, self._space.recording
        if known.by_device and isinstance(backend, CoreMLBackend):
            here = partial(_on_ane, backend, here)
        if not known.recordable:
            return here()
        if backend.on_device or (recording and not known.by_device):
            return self._recording(gate, here) if recording else here()
        if recording:  # On a machine without an ANE, for which there is no evidence to be had.
            measurement = here()
            self._note("not recorded", gate, [f"measured on {without_ane(backend.provenance())}"])
            return measurement
        if self._policy.requires_evidence(gate):
            return self._proven(gate)
        if GATES[gate].recorded_first:
            try:
                return self._proven(gate)
            except UnprovenError as error:
                if error.kind != "missing":
                    self._note("not used", gate, [str(error)])
        return here()

    def _measure(self, gate: str) -> Callable[[], Any]:
        subject = self._subject
        if isinstance(subject, Shard):
            context = self._opened(subject)
            return lambda: GATES[gate].measure(context)
        return lambda: GATES[gate].measure(subject)

    def _opened(self, shard: Shard) -> ShardContext:
        return self._context or self._space.open_shard(shard)

    def _recording(self, gate: str, here: Callable[[], Any]) -> Any:
        """Measure, and write what `--ane-record` names; what is valid need not be done again."""
        try:
            valid = self._verified(gate, signed=False)
        except UnprovenError as error:
            state = "missing" if error.kind == "missing" else "stale"
        else:
            if "all" not in self._space.recording:
                self._note("kept", gate)
                return self._judged(valid)
            state = "all"
        measurement = here()
        if {state, "all"} & self._space.recording:
            self._write(gate, measurement)
        else:
            self._note(f"left {state}", gate)
        return measurement

    def _proven(self, gate: str) -> Any:
        """What was recorded, if it counts; the summary names the machine."""
        statement = self._verified(gate)
        measurement = self._judged(statement)
        self._note("verified", gate, [machine(statement)])
        return measurement

    def _judged(self, statement: Statement) -> Any:
        """The recorded measurement; its verdict will name where and when it was recorded."""
        self.statement = statement
        if self._item is not None:
            self._item.stash[RECORDED] = statement
        if not isinstance(self._subject, Shard):
            return statement.measurement
        return GATES[statement.gate].beside(statement.measurement, self._opened(self._subject))

    def _write(self, gate: str, measurement: Any) -> None:
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
        if store.path(gate, self._name).exists():
            what, lines = "recorded again", list(self._changes(gate, new))
            if lines and self._say(
                [f"recording again {self._file(gate)}", *(f"  {line}" for line in lines)]
            ):
                lines = []
        store.write(new)
        self._note(what, gate, lines)
        try:
            self._verified(gate, signed=False)
        except UnprovenError as error:
            self._note("does not count", gate, [str(error)])

    def _stated(self, gate: str, measurement: Any) -> Statement:
        """A measurement made now, with what else a record holds."""
        root = self._space.manifest.path.absolute().parent
        return Statement(
            gate=gate,
            subject=self._name,
            files=self._files,
            environment=self._space.backend.provenance(),
            asked=self._asked(gate),
            recorded=datetime.now(timezone.utc).replace(microsecond=0),
            measurement=measurement,
            commit=self._space.commit,
            gate_file=file_digest(in_use(root, f"test_{gate}.py")),
            counter=self._counter(gate),
        )

    def _counter(self, gate: str) -> int:
        """One more than the record that lies there has; a damaged one starts again."""
        try:
            return (
                Statement.from_json(self._space.evidence.read(gate, self._name) or b"").counter + 1
            )
        except EvidenceError:
            return 1

    def _changes(self, gate: str, new: Statement) -> Iterator[str]:
        try:
            old = Statement.from_json(self._space.evidence.read(gate, self._name) or b"")
        except EvidenceError as error:
            yield f"what was there could not be read: {error}"
        else:
            yield from changes(old, new)

    def _verified(self, gate: str, *, signed: bool = True) -> Statement:
        policy = self._policy.evidence_for(gate)
        if not signed:
            # Signatures are made of what was recorded.
            policy = policy.model_copy(update={"signers": ()})
        return verify(
            self._space.evidence,
            gate,
            self._asked_of,
            files=self._files,
            asked=self._asked(gate),
            policy=policy,
            now=datetime.now(timezone.utc),
            artifact=self._artifact,
        )

    def _asked(self, gate: str) -> dict[str, Any]:
        model = self._space.manifest.model_of(self._name.partition(":")[0])
        return question(gate, self._asked_of, model, lambda: self._space.model(model.name).identity)

    @property
    def _asked_of(self) -> Subject:
        """The shard or the model, as the manifest has it."""
        if isinstance(self._subject, Shard):
            return self._subject
        return self._space.manifest.model_of(self._name)

    @property
    def _artifact(self) -> Path | None:
        subject = self._subject
        return self._space.artifact(subject).path if isinstance(subject, Shard) else None

    @cached_property
    def _files(self) -> dict[str, str]:
        """Digests of the artifact's files, or of those of all shards, before it is measured."""
        return self._files_now()

    def _files_now(self) -> dict[str, str]:
        if isinstance(self._subject, Shard):
            shard = self._subject
            return files_of({shard.id: self._space.artifact(shard).path})
        return files_of({shard.id: artifact.path for shard, artifact in self._subject.artifacts})

    @property
    def _policy(self) -> Policy:
        return self._asked_of.policy

    @property
    def _name(self) -> str:
        return self._subject.qualified if isinstance(self._subject, Shard) else self._subject.model

    def _note(self, what: str, gate: str, lines: Sequence[str] = ()) -> None:
        """Note on the test what became of a file, for the summary."""
        if self._item is not None:
            note = "\n".join([what, self._file(gate), *lines])
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

    def _file(self, gate: str) -> str:
        store = self._space.evidence
        return store.path(gate, self._name).relative_to(store.folder).as_posix()
