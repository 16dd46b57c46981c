"""Evidence in the store that machines share, by what was measured and what was asked.

A device's answers come from a few Macs. What they record is stored; where a folder of evidence has
no file of a gate and subject, the file is fetched, and lies there like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pytest_ane.evidence.statement import Statement, plain
from pytest_ane.evidence.store import Store
from pytest_ane.evidence.strict_json import MOST_BYTES
from pytest_ane.make.shared_store import SharedStore
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import EvidenceError


def push(shared: SharedStore, folder: Store, statement: Statement, system: str = "") -> None:
    """Store evidence that was written to a folder, in place of an older answer to its question.

    One that another machine recorded later stays, which is said.
    """
    name = _name(statement.gate, statement.subject, statement.files, statement.asked, system)
    with suppress(EvidenceError):
        there = Statement.from_json(shared.read(name, MOST_BYTES) or b"")
        if there.recorded > statement.recorded:
            shared.notify(
                f"{statement.subject}: the store {shared.name} has evidence of {statement.gate} "
                "that was recorded later; it stays there."
            )
            return
    shared.write(name, folder.path(statement.gate, statement.subject, system))


def fetch(
    shared: SharedStore,
    folder: Store,
    gate: str,
    subject: str,
    files: Mapping[str, str],
    asked: Mapping[str, Any],
    system: str = "",
) -> bool:
    """Write the store's evidence to a folder; whether the store has any that is whole.

    Args:
        shared: the store.
        folder: where evidence is kept.
        gate: whose evidence is wanted.
        subject: a qualified shard id, or a model's name.
        files: SHA-256 of the artifact's files as they are now, `files_of`.
        asked: what is asked now, `question`.
        system: as the policy names it; empty where it names none.

    Raises:
        EvidenceError: the folder cannot be written.
    """
    name = _name(gate, subject, files, asked, system)
    data = shared.read(name, MOST_BYTES)
    if data is None:
        return False
    try:
        statement = Statement.from_json(data)
    except EvidenceError as error:
        shared.notify(f"{subject}: its evidence of {gate} in the store {shared.name} {error}.")
        return False
    found = statement.gate, statement.subject, {**statement.files}, plain(statement.asked)
    if found != (gate, subject, {**files}, plain(asked)):
        shared.notify(
            f"{subject}: its evidence of {gate} in the store {shared.name} answers another "
            "question; it is not used."
        )
        return False
    folder.write(statement, system)
    return True


def _name(
    gate: str, subject: str, files: Mapping[str, str], asked: Mapping[str, Any], system: str
) -> str:
    parts = [gate, subject, {**files}, plain(asked), system]
    return f"evidence/{key_digest(parts)}.json"
