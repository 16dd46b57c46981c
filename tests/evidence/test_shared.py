"""Evidence in the store that machines share: the latest answer to a question stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pytest_ane.evidence import Store
from pytest_ane.evidence.shared import fetch, push
from pytest_ane.evidence.statement import Statement
from pytest_ane.make.shared_store import SharedStore
from tests.evidence.makers import statement


def told_of(shared: Path, folder: Path, given: Statement) -> list[str]:
    """What is said when a machine stores evidence that it has recorded."""
    told: list[str] = []
    store = Store(folder)
    store.write(given)
    push(SharedStore(str(shared), told.append), store, given)
    return told


def test_what_was_recorded_later_stays(tmp_path: Path) -> None:
    shared, old = tmp_path / "shared", statement("placement")
    new = replace(old, recorded=old.recorded + timedelta(minutes=1))
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
    assert Statement.from_json(data).recorded == new.recorded


def test_what_is_damaged_there_is_replaced(tmp_path: Path) -> None:
    shared, given = tmp_path / "shared", statement("fidelity")
    told_of(shared, tmp_path / "one", given)
    (file,) = (shared / "evidence").iterdir()
    file.write_bytes(b"{")
    assert told_of(shared, tmp_path / "one", given) == []
    assert file.read_bytes() != b"{"
