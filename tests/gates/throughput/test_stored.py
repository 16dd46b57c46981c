"""Stored runs: whole ones are read, all others are one sentence."""

from __future__ import annotations

import copy
import json
import os
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_benchmark.logger import Logger
from pytest_benchmark.plugin import pytest_benchmark_scale_unit
from pytest_benchmark.storage.file import FileStorage
from pytest_benchmark.table import TableResults
from pytest_benchmark.utils import DEFAULT_COLUMNS, consistent_dumps, report_noprogress

from pytest_ane.gates.throughput.speed import KEY
from pytest_ane.gates.throughput.stored import files_of, folder_of, open_storage, read_stored
from pytest_ane.mlprogram.errors import UnprovenError
from tests.gates.throughput.runs import run, speed, storage, store
from tests.hostile import leaves

SPEED = speed(4.0, 4.1, artifacts={"L00": "a"}, prompt=(2, 42), profile={"block": 0.08})
WHOLE = json.dumps(run(SPEED)).encode()


def complaint(file: Path) -> str:
    with pytest.raises(UnprovenError) as caught:
        read_stored(file)
    assert caught.value.kind == "damaged"
    text = str(caught.value)
    assert "\n" not in text
    assert str(file) in text
    assert text.endswith(
        "record it again with: pytest -m bench --ane-shards=all --benchmark-autosave"
    )
    return text.removeprefix(f"{file} cannot be compared with (").partition("); delete it")[0]


def test_a_run_comes_back_and_is_read_again_where_it_changed(tmp_path: Path) -> None:
    stored = read_stored(store(tmp_path, 3, SPEED))
    assert (stored.number, stored.when) == ("0003", "2026-11-20")
    name = "gates/test_throughput.py::decode[smollm2-0]"
    assert stored.speeds == {name: SPEED}
    assert stored.names == {name, "gates/test_throughput.py::test_own"}
    assert read_stored(store(tmp_path, 1)).speeds == {}
    read_stored(store(tmp_path, 1, SPEED))
    assert len(read_stored(store(tmp_path, 1, SPEED, speed(5.0))).speeds) == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "invalid JSON: EOF while parsing a value at line 1 column 0"),
        (WHOLE[: len(WHOLE) // 2], "invalid JSON: EOF while parsing"),
        (b"\xff\xfe\x00", "invalid JSON: expected value at line 1 column 1"),
        (b"[" * 100_000, "invalid JSON: recursion limit exceeded"),
        (b"[]", "input should be an object"),
        (b"{}", "benchmarks: field required"),
        (b'{"benchmarks": 1, "machine_info": {}}', "benchmarks: input should be a valid array"),
        (b"1" * 5000, "invalid JSON: number out of range"),
    ],
    ids=["empty", "cut", "binary", "deep", "list", "foreign", "number", "digits"],
)
def test_damaged(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "0001_x.json"
    file.write_bytes(data)
    assert complaint(file).startswith(says)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("seconds", [], "seconds: tuple should have at least 1 item"),
        ("seconds", [float("nan")], "seconds[0]: input should be a finite number"),
        ("seconds", [-1.0], "seconds[0]: input should be greater than 0"),
        ("seconds", [5e-324], "4.94066e-324 seconds are no round's"),
        ("seconds", [1e308, 1e308], "1e+308 seconds are no round's"),
        ("tokens", 10**400, "10,000,000,"),
        ("tokens", 1 << 50, "1,125,899,906,842,624 tokens are no round's"),
        ("what", "sleep", "what: input should be 'load', 'call' or 'decode'"),
        ("identity", None, "identity: input should be a valid dictionary"),
    ],
    ids=["none", "nan", "negative", "denormal", "infinite", "huge", "many", "what", "identity"],
)
def test_speeds_that_none_can_have(tmp_path: Path, key: str, value: Any, says: str) -> None:
    file = store(tmp_path, 1, SPEED)
    data = json.loads(file.read_text())
    data["benchmarks"][1]["extra_info"][KEY][key] = value
    file.write_text(json.dumps(data))
    assert complaint(file).startswith(says)


def test_no_file_at_all_or_a_huge_one(tmp_path: Path) -> None:
    file = tmp_path / "0001_x.json"
    assert complaint(file) == "No such file or directory"
    file.mkdir()
    assert complaint(file) == "it is no regular file"
    file.rmdir()
    os.mkfifo(file)
    assert complaint(file) == "it is no regular file"
    file.unlink()
    file.touch()
    os.truncate(file, 1 << 30)
    assert complaint(file) == "1,073,741,824 bytes are more than it should have"


def shown(file: Path) -> None:
    """What pytest-benchmark does with a run that `--benchmark-compare` names."""
    logger = Logger(Logger.QUIET)
    ((_, data),) = FileStorage(file.parent, logger).load(str(file))
    consistent_dumps(data["machine_info"])
    by_name = {bench["fullname"]: bench for bench in data["benchmarks"]}
    flat = [{"name": name, "fullname": name} | bench["stats"] for name, bench in by_name.items()]
    scale = partial(pytest_benchmark_scale_unit, config=None)
    table = TableResults(DEFAULT_COLUMNS, "min", None, itemgetter("name"), logger, scale)
    table.display(MagicMock(), [(None, flat)] if flat else [], report_noprogress)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from([*leaves(json.loads(WHOLE))]), value=JSON, drop=st.booleans())
def test_any_change_is_read_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any, drop: bool
) -> None:
    data = copy.deepcopy(json.loads(WHOLE))
    *way, last = place
    table = data
    for key in way:
        table = table[key]
    if drop:
        del table[last]
    else:
        table[last] = value
    file = tmp_path_factory.mktemp("run") / "0001_x.json"
    file.write_text(json.dumps(data))
    try:
        stored = read_stored(file)
    except UnprovenError:
        complaint(file)
    else:
        assert all(one.median > 0 for one in stored.speeds.values())
        shown(file)


def test_the_folder_is_pytest_benchmarks_or_a_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_storage()
    assert opened.path == tmp_path / ".benchmarks"
    assert folder_of(opened).parent == opened.path
    assert open_storage("file://runs").path == open_storage("runs").path == tmp_path / "runs"
    own = open_storage(baselines=tmp_path / "baselines")
    assert own.path == tmp_path / "baselines"
    assert own.default_machine_id == open_storage(str(tmp_path)).default_machine_id
    with pytest.raises(UnprovenError, match=r"^--benchmark-storage=ftp://host is no folder"):
        open_storage("ftp://host")
    place = storage(tmp_path)
    files = [store(tmp_path, number, speed(4.0)) for number in (1, 2)]
    assert files_of(place) == files_of(place, "0") == files
    with pytest.raises(UnprovenError, match="--benchmark-compare=0003 names no run in"):
        files_of(place, "0003")
