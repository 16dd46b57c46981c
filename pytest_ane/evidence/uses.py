"""Which evidence files a manifest has a use for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pytest_ane.core.errors import EvidenceError, UnprovenError
from pytest_ane.evidence.dsse import read_envelope
from pytest_ane.evidence.statement import Statement
from pytest_ane.evidence.store import SIGNATURES, Store, read_file, signature
from pytest_ane.manifest import Gate, Manifest, Model, Shard

Subject: TypeAlias = Shard | Model
GATES_OF_SHARD: tuple[Gate, ...] = ("placement", "compression", "fidelity")


def used(store: Store, manifest: Manifest) -> Mapping[Path, tuple[Gate, Subject]]:
    """Where evidence of the manifest's shards and models is or would be."""
    found: list[tuple[Gate, Subject]] = [
        (gate, shard) for shard in manifest.shards for gate in GATES_OF_SHARD
    ]
    found += [("behaviour", model) for model in manifest.models]
    return {store.path(gate, name_of(subject)): (gate, subject) for gate, subject in found}


def unused(store: Store, manifest: Manifest) -> list[Path]:
    """Statements that no shard uses, with their signatures, and signatures of nothing.

    Whatever else lies in the folder, such as a `package.json`, is not evidence.
    """
    known, files = used(store, manifest), store.files()
    kept = {signature(path, end) for path in files if path in known for end in SIGNATURES}
    every = sorted(store.folder.glob("*/*.json"))
    signatures = [path for path in every if path.name.endswith(SIGNATURES) and path not in kept]
    others = [path for path in files if path not in known] + signatures
    return [path for path in others if is_evidence(path)]


def is_evidence(path: Path) -> bool:
    """Whether a file, but no link, holds a statement of ours, or a signature of one."""
    if path.is_symlink() or path.parent.is_symlink():
        return False
    try:
        signed = path.name.endswith(SIGNATURES)
        Statement.from_json(read_envelope(path).payload if signed else read_file(path) or b"")
    except (EvidenceError, UnprovenError):
        return False
    return True


def name_of(subject: Subject) -> str:
    """A shard's qualified id, or a model's name."""
    return subject.name if isinstance(subject, Model) else subject.qualified
