"""The folder of evidence: where files are, and how they are replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pytest_ane.make.shared_store import SharedStore
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import Record
from pytest_ane.records.store import Store, fetch, push, signature
from tests.records.makers import record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty folder that is not there yet."""
    return Store(tmp_path / "evidence")


@pytest.mark.parametrize(
    ("gate", "subject", "path"),
    [
        ("placement", "smollm2:L01", "smollm2/L01.placement.json"),
        ("fidelity", "g:L00.p7", "g/L00.p7.fidelity.json"),
        ("behaviour", "smollm2", "smollm2/behaviour.json"),
        ("placement", "7b-it.v2:L00.p1", "7b-it.v2/L00.p1.placement.json"),
    ],
)
def test_where_evidence_is_kept(store: Store, gate: str, subject: str, path: str) -> None:
    assert store.path(gate, subject) == store.folder / path


@pytest.mark.parametrize(
    "subject", ["..", "../x", "m:../x", "", ":L01", "m:", "m:a/b", ".git", "m\n"]
)
def test_nothing_leads_out_of_the_folder(store: Store, subject: str) -> None:
    with pytest.raises(EvidenceError, match="is neither a model nor a shard"):
        store.path("placement", subject)


def test_written_and_read(store: Store) -> None:
    assert store.read("placement", "smollm2:L01") is None
    assert store.files() == []
    path = store.write(record("placement"))
    data = store.read("placement", "smollm2:L01")
    assert data == path.read_bytes() == record("placement").to_json().encode()
    assert Record.from_json(data).subject == "smollm2:L01"
    assert [one.name for one in path.parent.iterdir()] == ["L01.placement.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_new_statement_takes_the_old_signature_away(store: Store) -> None:
    path = store.write(record("placement"))
    beside = signature(path, ".dsse.json")
    beside.write_text("{}")
    store.write(record("placement"))
    assert not beside.exists()


def test_what_is_replaced(store: Store) -> None:
    """A record, and what is damaged; nothing else."""
    path = store.write(record("placement"))
    for there in ("{", '{"format": 2, "gate": "placement", "sha256": ""}'):
        path.write_text(there)
        assert store.write(record("placement")).read_text() == record("placement").to_json()
    path.write_text('{"name": "mine"}')
    with pytest.raises(EvidenceError, match=r"is no evidence and is not replaced; move it away"):
        store.write(record("placement"))


def test_a_write_that_fails_leaves_the_old_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.write(record("placement"))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EvidenceError, match=r"cannot be written \(No space left on device\)"):
        store.write(record("placement", subject="smollm2:L01", environment={}))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "it is no regular file"),
        (_large, r"cannot be read \([\d,]+ bytes are more than it should have\)"),
        (
            lambda path: path.symlink_to("/dev/zero"),
            r"L01\.placement\.json cannot be read \(it is no",
        ),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_what_is_no_file_is_not_read(
    store: Store, make: Callable[[Path], object], says: str
) -> None:
    path = store.path("placement", "m:L01")
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(EvidenceError, match=says):
        store.read("placement", "m:L01")


def told_of(shared: Path, folder: Path, given: Record) -> list[str]:
    """What is said when a machine stores evidence that it has recorded."""
    told: list[str] = []
    store = Store(folder)
    store.write(given)
    push(SharedStore(str(shared), told.append), store, given)
    return told


def test_what_was_recorded_later_stays(tmp_path: Path) -> None:
    shared, old = tmp_path / "shared", record("placement")
    new = replace(old, time=old.time + timedelta(minutes=1))
    assert told_of(shared, tmp_path / "one", old) == []
    assert told_of(shared, tmp_path / "two", new) == []
    assert told_of(shared, tmp_path / "one", old) == [
        f"smollm2:L01: the store {shared} has evidence of placement that was recorded later; it "
        "stays there."
    ]
    assert told_of(shared, tmp_path / "two", new) == []
    third = Store(tmp_path / "three")
    assert fetch(
        SharedStore(str(shared), print), third, new.gate, new.subject, new.files, new.asked
    )
    data = third.read(new.gate, new.subject)
    assert data is not None
    assert Record.from_json(data).time == new.time


def test_what_is_damaged_there_is_replaced(tmp_path: Path) -> None:
    shared, given = tmp_path / "shared", record("fidelity")
    told_of(shared, tmp_path / "one", given)
    (file,) = (shared / "evidence").iterdir()
    file.write_bytes(b"{")
    assert told_of(shared, tmp_path / "one", given) == []
    assert file.read_bytes() != b"{"
