"""What a gate judges: measured here, recorded here, or recorded on a Mac and verified here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from pytest_ane.core.errors import EvidenceError, UnprovenError
from pytest_ane.evidence import Measurement, Statement, changes
from pytest_ane.evidence.asked import files_of, question
from pytest_ane.evidence.judge import machine
from pytest_ane.evidence.uses import Subject
from pytest_ane.evidence.verify import verify
from pytest_ane.manifest import Gate, Policy, Shard
from pytest_ane.project.stack import Stack

if TYPE_CHECKING:
    from pytest_ane.plugin.workspace import Workspace

T = TypeVar("T")
RECORDED = pytest.StashKey[Statement]()
"""What a test judges, if it was recorded."""
NOTED = "ane.evidence.file"
"""The property of a test that says what became of a file of evidence."""


class Evidence:
    """The evidence on one shard, or on one model's stack.

    Args:
        space: the run's workspace.
        subject: a shard, or a whole model.
        item: the test that asks; what was recorded, or not used, is noted on it.

    Attributes:
        found: what was recorded and is judged, if anything is.
    """

    def __init__(
        self, space: Workspace, subject: Shard | Stack, item: pytest.Item | None = None
    ) -> None:
        self._space = space
        self._subject = subject
        self._item = item
        self.found: Statement | None = None

    def of(self, gate: Gate, here: Callable[[], T]) -> T:
        """A gate's measurement.

        On a device it is made by `here`, and kept as a file with `--ane-record`. Elsewhere it is
        what was recorded, where the policy asks for a device; a plan that was recorded also goes
        before a forecast. Everything else is measured here.

        Raises:
            UnprovenError: the policy asks for evidence, and there is none that counts.
        """
        if self._space.backend.on_device:
            return self._recording(gate, here) if self._space.recording else here()
        if self._policy.requires_evidence(gate):
            return cast(T, self._proven(gate))
        if gate == "placement":
            try:
                return cast(T, self._proven(gate))
            except UnprovenError as error:
                if error.kind != "missing":
                    self._note("not used", gate, [str(error)])
        return here()

    def _recording(self, gate: Gate, here: Callable[[], T]) -> T:
        """Measure, and write what `--ane-record` names; what is valid need not be done again."""
        try:
            valid = self._verified(gate, signed=False)
        except UnprovenError as error:
            state = "missing" if error.kind == "missing" else "stale"
        else:
            if "all" not in self._space.recording:
                self._note("kept", gate)
                return cast(T, self._found(valid))
            state = "all"
        found = here()
        if {state, "all"} & self._space.recording:
            self._write(gate, found)
        else:
            self._note(f"left {state}", gate)
        return found

    def _proven(self, gate: Gate) -> Measurement:
        """What was recorded, if it counts; the summary names the machine."""
        statement = self._verified(gate)
        found = self._found(statement)
        self._note("verified", gate, [machine(statement)])
        return found

    def _found(self, statement: Statement) -> Measurement:
        """What was recorded; its verdict will say where and when."""
        self.found = statement
        if self._item is not None:
            self._item.stash[RECORDED] = statement
        return statement.measurement

    def _write(self, gate: Gate, measurement: Any) -> None:
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
        new = Statement(
            gate=gate,
            subject=self._name,
            files=self._files,
            environment=self._space.backend.provenance(),
            asked=self._asked(gate),
            recorded=datetime.now(timezone.utc).replace(microsecond=0),
            measurement=measurement,
        )
        what, lines = "recorded", list[str]()
        if store.path(gate, self._name).exists():
            what, lines = "recorded anew", list(self._changes(gate, new))
            if lines and self._say(
                [f"recording anew {self._file(gate)}", *(f"  {line}" for line in lines)]
            ):
                lines = []
        store.write(new)
        self._note(what, gate, lines)
        try:
            self._verified(gate, signed=False)
        except UnprovenError as error:
            self._note("does not count", gate, [str(error)])

    def _changes(self, gate: Gate, new: Statement) -> Iterator[str]:
        try:
            old = Statement.from_json(self._space.evidence.read(gate, self._name) or b"")
        except EvidenceError as error:
            yield f"what was there could not be read: {error}"
        else:
            yield from changes(old, new)

    def _verified(self, gate: Gate, *, signed: bool = True) -> Statement:
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

    def _asked(self, gate: Gate) -> dict[str, Any]:
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

    def _note(self, what: str, gate: Gate, lines: Sequence[str] = ()) -> None:
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

    def _file(self, gate: Gate) -> str:
        store = self._space.evidence
        return store.path(gate, self._name).relative_to(store.folder).as_posix()
