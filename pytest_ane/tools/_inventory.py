"""Recorded evidence beside the manifest and what is built of it; nothing is built here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES, recordable
from pytest_ane.gates.verdict import Verdict, nothing
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Shard, select
from pytest_ane.manifest.ids import without_function
from pytest_ane.mlprogram.errors import AneError, BuildError, EvidenceError, UnprovenError
from pytest_ane.project.choose import is_complete
from pytest_ane.project.project import read_project
from pytest_ane.records.compare import Recorded, Skipped
from pytest_ane.records.record import Record, files_of, question, read_file
from pytest_ane.records.store import FOLDER, Place, Store
from pytest_ane.records.verify import EvidenceFile, answers, combined

Today: TypeAlias = tuple[Mapping[str, str], Mapping[str, Any], Artifact | None]
"""Digests of what is built, the question, and a shard's package."""


class Inventory:
    """The evidence files of a project, and what each is worth.

    Attributes:
        now: the time that ages count to.
    """

    def __init__(self, manifest: Path | None, folder: Path | None, cache: Path | None) -> None:
        self.project = read_project(manifest, cache)
        self.manifest = self.project.manifest
        self.store = Store(folder or self.manifest.path.parent / FOLDER)
        self.now = datetime.now(timezone.utc)

    @cached_property
    def used(self) -> Mapping[Path, Place]:
        """Where evidence of the manifest's shards and models is or would be."""
        return self.store.used(self.manifest)

    def unused(self) -> list[Path]:
        """Records that no shard uses, with their signatures, and signatures of nothing."""
        return self.store.unused(self.manifest)

    def paths(self, what: str) -> list[Path]:
        """The evidence files that a file's name, a shard or a model means, or `EvidenceError`."""
        if (path := Path(what)).is_file():
            same = (used for used in self.used if used.exists() and used.samefile(path))
            return [next(same, path)]
        files = [p for p, (_, s, _) in self.used.items() if what in _names(s) and p.is_file()]
        if not files:
            raise EvidenceError(
                f"{what} is neither an evidence file nor a shard or model with evidence in "
                f"{self.store.folder}; pytest-ane evidence list shows what there is."
            )
        return files

    def read(self, path: Path) -> Record:
        """A record; `EvidenceError` where the file is damaged."""
        try:
            return Record.from_json(read_file(path) or b"")
        except EvidenceError as error:
            raise EvidenceError(f"{path}: {str(error).removeprefix(f'{path} ')}") from None

    def state(self, path: Path) -> str:
        """What a file is worth: `valid`, `unused`, or why not."""
        if path not in self.used:
            return "unused"
        try:
            self.verified(*self.used[path])
        except UnprovenError as error:
            return error.kind
        except BuildError:
            return "not built"
        except AneError:
            return "unknown"
        return "valid"

    def required(self, selection: str) -> list[tuple[str, Subject]]:
        """Gates of selected shards, and of whole models, that pass only on a device's evidence."""
        return [(g, s) for g, s in self._recordable(selection) if s.policy.requires_evidence(g)]

    def _recordable(self, selection: str) -> list[tuple[str, Subject]]:
        """Gates of selected shards, and of whole models, that recorded evidence may answer."""
        shards = select(self.manifest, selection)
        chosen = {shard.qualified for shard in shards}
        wanted: list[tuple[str, Subject]] = [
            (gate.name, shard)
            for shard in shards
            for gate in recordable("shard")
            if gate.asks(shard)
        ]
        complete = [model for model in self.manifest.models if is_complete(model, chosen)]
        return wanted + [(gate.name, model) for model in complete for gate in recordable("model")]

    def comparable(self, stores: Sequence[Store], selection: str) -> Iterator[Recorded | Skipped]:
        """Evidence of selected shards in several folders, for `compare`; what does not count too.

        What is built is held against the package; what is not, against other evidence alone.
        """
        for gate, subject in self._recordable(selection):
            if not GATES[gate].by_device:  # It would be the same on any machine.
                continue
            paths = [path for store in stores for path in store.all(gate, subject.qualified)]
            today: Today | None = None
            with suppress(AneError):
                today = self._today(gate, subject) if paths else None
            for path in paths:
                try:
                    yield self._trusted(EvidenceFile(path, gate, subject), today)
                except UnprovenError as error:
                    yield Skipped(path, error.kind, str(error))
        for store in stores:
            yield from (Skipped(path, "unused") for path in store.unused(self.manifest))

    def _trusted(self, file: EvidenceFile, today: Today | None) -> Recorded:
        """A file's record, if it counts; the policy's systems, chips and age are left out."""
        policy = file.subject.policy.evidence
        policy = policy.model_copy(update={"chips": None, "os": None, "max_age": None})
        files, asked, artifact = today or (None, None, None)
        found = file.verified(
            policy=policy, now=self.now, files=files, asked=asked, artifact=artifact
        )
        digest = sha256(found.to_json().encode()).hexdigest()
        return Recorded(file.path, digest, found, file.subject, is_held=today is not None)

    def proven(self, gate: str, subject: Subject) -> Verdict:
        """Today's policy applied to what was recorded, on the worst of the policy's systems.

        `unproven` with the sentence where it proves nothing.
        """
        try:
            return combined(answers(gate, subject, partial(self.verified, gate, subject)))
        except AneError as error:
            reason, _, remedy = str(error).partition("; ")
            return nothing(gate, subject.qualified, reason, remedy)

    def verified(self, gate: str, subject: Subject, system: str = "") -> Record:
        """The evidence of a gate, if it is of what is built and the policy takes it.

        Raises:
            AneError: it proves nothing, the shard is not built, or its source is missing.
        """
        files, asked, artifact = self._today(gate, subject)
        file = EvidenceFile.at(self.store, gate, subject, system)
        policy = subject.policy.evidence
        return file.verified(
            policy=policy, now=self.now, files=files, asked=asked, artifact=artifact
        )

    def _today(self, gate: str, subject: Subject) -> Today:
        """What is built and what is asked, which evidence has to fit, and a shard's package."""
        model = self.manifest.model_of(subject.qualified.partition(":")[0])
        shards = model.shards if isinstance(subject, Model) else (subject,)
        artifacts = {shard.id: self._artifact(shard) for shard in shards}
        asked = question(gate, subject, model, lambda: self.project.model(model.name).identity)
        artifact = artifacts[subject.id] if isinstance(subject, Shard) else None
        return files_of(artifacts), asked, artifact

    def _artifact(self, shard: Shard) -> Artifact:
        """A shard's package; `BuildError` where there is none."""
        package = self.project.package(shard)
        if package is None:
            raise BuildError(
                f"{shard.qualified} is not built, and nothing is built here; run: "
                f"pytest --ane-shards={shard.qualified} -m gate"
            )
        if not package.exists():
            raise BuildError(f"{shard.qualified}: the artifact {package} does not exist.")
        return Artifact(package)


def _names(subject: Subject) -> tuple[str, ...]:
    """What a shard or model may be called."""
    name = subject.qualified
    if not isinstance(subject, Shard):
        return (name,)
    return (name, subject.id, *(without_function(each)[0] for each in (name, subject.id)))
