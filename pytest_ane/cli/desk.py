"""Evidence, the manifest and what is built, side by side; nothing is built here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_ane.build import Cache
from pytest_ane.build.record import PACKAGE
from pytest_ane.build.shard import artifact_key
from pytest_ane.core.digests import key_digest, remembered
from pytest_ane.core.errors import AneError, BuildError, EvidenceError, UnprovenError
from pytest_ane.core.verdict import Verdict
from pytest_ane.evidence import FOLDER, Statement, Store
from pytest_ane.evidence.asked import files_of, question
from pytest_ane.evidence.judge import judge
from pytest_ane.evidence.store import read_file
from pytest_ane.evidence.uses import GATES_OF_SHARD, Subject, name_of, unused, used
from pytest_ane.evidence.verify import verify
from pytest_ane.families import make_importable
from pytest_ane.manifest import Gate, Model, Shard, load, select
from pytest_ane.plugin.workspace import is_complete
from pytest_ane.project.builder_model import BuiltModel
from pytest_ane.project.models import OpenModel


class Desk:
    """What the commands about evidence look at.

    Attributes:
        now: what ages are reckoned from.
    """

    def __init__(self, manifest: Path | None, folder: Path | None, cache: Path | None) -> None:
        self.manifest = load(manifest or Path("shards.toml"))
        make_importable(self.manifest)
        self.store = Store(folder or self.manifest.path.parent / FOLDER)
        self.now = datetime.now(timezone.utc)
        self._cache_root = cache
        self._models: dict[str, OpenModel | BuiltModel] = {}

    def remembering(self, *, rehash: bool) -> AbstractContextManager[None]:
        """Digests of unchanged files are remembered between commands."""
        return remembered(self._cache.root / "digests", rehash=rehash)

    @cached_property
    def used(self) -> Mapping[Path, tuple[Gate, Subject]]:
        """Where evidence of the manifest's shards and models is or would be."""
        return used(self.store, self.manifest)

    def unused(self) -> list[Path]:
        """Statements that no shard uses, with their signatures, and signatures of nothing."""
        return unused(self.store, self.manifest)

    def paths(self, what: str) -> list[Path]:
        """The evidence files that a file's name, a shard or a model means.

        Raises:
            EvidenceError: it means none.
        """
        if (path := Path(what)).is_file():
            return [next((used for used in self.used if _same(used, path)), path)]
        found = [p for p, (_, s) in self.used.items() if what in _names(s) and p.is_file()]
        if not found:
            raise EvidenceError(
                f"{what} is neither an evidence file nor a shard or model with evidence in "
                f"{self.store.folder}; pytest-ane evidence list shows what there is."
            )
        return found

    def read(self, path: Path) -> Statement:
        """A statement; `EvidenceError` where the file is damaged."""
        try:
            return Statement.from_json(read_file(path) or b"")
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

    def required(self, selection: str) -> list[tuple[Gate, Subject]]:
        """Gates of selected shards, and of whole models, that pass only on a device's evidence."""
        shards = select(self.manifest, selection)
        chosen = {shard.qualified for shard in shards}
        wanted: list[tuple[Gate, Subject]] = [
            (g, shard) for shard in shards for g in GATES_OF_SHARD
        ]
        wanted += [("behaviour", m) for m in self.manifest.models if is_complete(m, chosen)]
        return [(gate, one) for gate, one in wanted if one.policy.requires_evidence(gate)]

    def proven(self, gate: Gate, subject: Subject) -> Verdict:
        """The verdict on what is recorded; `unproven` with the sentence where it proves nothing."""
        try:
            return self.verdict(gate, subject)
        except AneError as error:
            says = str(error)
            what = error.summary if isinstance(error, UnprovenError) else says.partition("; ")[0]
            return Verdict(gate, name_of(subject), "unproven", what, reasons=(says,))

    def verdict(self, gate: Gate, subject: Subject) -> Verdict:
        """Today's policy applied to what was recorded.

        Raises:
            AneError: it proves nothing, the shard is not built, or its source is missing.
        """
        return judge(self.verified(gate, subject), subject)

    def verified(self, gate: Gate, subject: Subject) -> Statement:
        """The evidence of a gate, if it is of what is built and the policy takes it."""
        model = self.manifest.model_of(name_of(subject).partition(":")[0])
        shards = model.shards if isinstance(subject, Model) else (subject,)
        return verify(
            self.store,
            gate,
            subject,
            files=files_of({shard.id: self._artifact(shard) for shard in shards}),
            asked=question(gate, subject, model, lambda: self._identity(model.name)),
            policy=subject.policy.evidence_for(gate),
            now=self.now,
            artifact=self._artifact(subject) if isinstance(subject, Shard) else None,
        )

    def _artifact(self, shard: Shard) -> Path:
        """A shard's package; `BuildError` where there is none."""
        if shard.artifact is not None:
            if shard.artifact.exists():
                return shard.artifact
            raise BuildError(f"{shard.qualified}: the artifact {shard.artifact} does not exist.")
        key = key_digest(artifact_key(shard, self._identity(shard.model)))
        if (folder := self._cache.get("artifacts", key)) is None:
            raise BuildError(
                f"{shard.qualified} is not built, and nothing is built here; run: "
                f"pytest --ane-shards={shard.qualified} -m gate"
            )
        return folder / PACKAGE

    @cached_property
    def _cache(self) -> Cache:
        return Cache(self._cache_root)

    def _identity(self, name: str) -> dict[str, Any]:
        if name not in self._models:
            model = self.manifest.model_of(name)
            self._models[name] = (BuiltModel if model.builder else OpenModel)(model, self._cache)
        return self._models[name].identity


def _names(subject: Subject) -> tuple[str, ...]:
    """What a shard or model may be called."""
    name = name_of(subject)
    return (name, subject.id) if isinstance(subject, Shard) else (name,)


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)
