"""Where runs are stored, and what is looked at before pytest-benchmark loads it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ane.core.errors import UnprovenError
from pytest_ane.gates.throughput.storage import check, folder_of, open_storage, storage_of
from tests.gates.throughput.runs import speed, storage, store


def test_the_folder_is_pytest_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_storage()
    assert opened.path == tmp_path / ".benchmarks"
    assert folder_of(opened).parent == opened.path
    assert open_storage("file://runs").path == open_storage("runs").path == tmp_path / "runs"


@pytest.mark.parametrize("uri", ["elasticsearch+http://host/index", "ftp://host"])
def test_a_database_is_no_folder(uri: str) -> None:
    says = rf"^--benchmark-storage={uri.replace('+', '.')} is no folder, and .*; leave it out\.$"
    with pytest.raises(UnprovenError, match=says):
        open_storage(uri)
    with pytest.raises(UnprovenError, match="is no folder"):
        storage_of(SimpleNamespace(storage=uri))


def test_a_models_own_folder(tmp_path: Path) -> None:
    session = SimpleNamespace(storage=storage(tmp_path))
    assert storage_of(session) is session.storage
    own = storage_of(session, tmp_path / "baselines")
    assert own.path == tmp_path / "baselines"
    assert own.default_machine_id == session.storage.default_machine_id


def test_the_run_that_will_be_loaded_is_checked(tmp_path: Path) -> None:
    place = storage(tmp_path)
    check(place, None)
    store(tmp_path, 1).write_text("{")
    store(tmp_path, 2, speed(4.0))
    check(place, None)
    check(place, "0002")
    for which in ("0001", "0"):
        with pytest.raises(UnprovenError, match=r"0001_run\.json cannot be compared with"):
            check(place, which)
    with pytest.raises(UnprovenError, match="--benchmark-compare=0003 names no run in"):
        check(place, "0003")
