"""Which evidence files a manifest uses, and which it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pytest_ane.evidence.envelope import read_envelope
from pytest_ane.evidence.statement import Statement
from pytest_ane.evidence.store import SIGNATURES, Store, read_file, signature
from pytest_ane.evidence.systems import systems_of
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import recordable
from pytest_ane.manifest import Manifest
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError

Place: TypeAlias = tuple[str, Subject, str]
"""What a file is evidence of: gate, subject, and system where the policy names several."""


def used(store: Store, manifest: Manifest) -> Mapping[Path, Place]:
    """Where evidence of the manifest's shards and models is or would be."""
    asked: list[tuple[str, Subject]] = [
        (gate.name, shard)
        for shard in manifest.shards
        for gate in recordable("shard")
        if gate.asks(shard)
    ]
    asked += [(gate.name, model) for model in manifest.models for gate in recordable("model")]
    return {
        store.path(gate, subject.qualified, system): (gate, subject, system)
        for gate, subject in asked
        for system in systems_of(gate, subject)
    }


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
