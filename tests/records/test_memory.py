"""Reading a memory: what is whole counts, and what is not is named."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.registry import GATES
from pytest_ane.gates.words import TIMED
from pytest_ane.mlprogram.errors import HistoryError
from pytest_ane.records.history import compare, courses, last_before
from pytest_ane.records.memory import Memory, Place, matches
from pytest_ane.records.record import sealed
from pytest_ane.records.run import Writer
from pytest_ane.records.steps import summaries, turns
from tests.ci.repository import git
from tests.records.runs import file_of, line, write

COSINES = (0.99, 0.98, float("nan"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, *(line(i, {"cosine.min": x}) for i, x in enumerate(COSINES)))


def values(memory: Memory, figure: str = "cosine.min") -> list[float]:
    [found] = memory.series(figure)
    return list(found.values)


def test_a_figure_over_runs(folder: Path) -> None:
    memory = Memory(folder)
    first, second, last = values(memory)
    assert (first, second) == (0.99, 0.98)
    assert math.isnan(last)
    assert [run.label for run in memory.runs] == ["000000000"] * 3
    assert memory.skipped == []


def test_half_a_line_is_skipped_and_nothing_else_is_lost(folder: Path) -> None:
    """As a run leaves it that was killed; the next one has a file of its own."""
    file = file_of(folder, 1)
    first, whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + whole[:40] + b"\n" + whole + whole[:99])
    memory = Memory(folder)
    assert values(memory)[:2] == [0.99, 0.98]
    assert [(skip.number, skip.why) for skip in memory.skipped] == [
        (2, "is damaged"), (4, "is damaged")
    ]  # fmt: skip


def test_a_run_s_own_file_is_a_memory_too(tmp_path: Path) -> None:
    """With measurements and verdicts, as CI keeps it."""
    (facts, record) = line(0, {"x": 1.0}, verdict={"status": "passed"})
    writer = Writer(tmp_path / "a.jsonl", facts)
    writer.add(record)
    writer.close(replace(facts, exit_code=0))
    assert values(Memory(tmp_path), "x") == [1.0]


GOOD = line(9, {"cosine.min": 0.5}).record.to_data()


def changed(**to: Any) -> bytes:
    """A record with other values, and a digest that fits it."""
    return json.dumps(sealed(GOOD | to)).encode()


HOSTILE = {
    "nested": b"[" * 100_000,
    "nested well": b"[" * 90_000 + b"]" * 90_000,
    "long": b'{"format":1,"gate":"' + b"x" * 20_000_000 + b'"}',
    "zeros": b"\0" * 1000,
    "no UTF-8": b'{"format":1,"gate":"\xff\xfe"}',
    "huge": b'{"format":1e999}',
    "a list": b"[1]",
    "a text": b'"format"',
    "no figures": changed(figures=[1]),
    "no time": changed(time="'; drop table lines; --"),
    "no subject": changed(subject=None),
    "edited": json.dumps(GOOD | {"figures": {"cosine.min": 1.0}}).encode(),
    "twice": json.dumps(GOOD).replace('"cosine.min": 0.5', '"h": 1, "h": 2').encode(),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_or_file_is_skipped(folder: Path, text: bytes) -> None:
    with file_of(folder, 2).open("ab") as file:
        file.write(text + b"\n")
    write(folder, line(3, {"cosine.min": 0.9}))
    (folder / "mine.jsonl").write_bytes(text + b"\n")
    memory = Memory(folder)
    name = file_of(folder, 2).name
    assert [*map(str, memory.skipped)] == [f"{name}:3 is damaged", "mine.jsonl:1 is damaged"]
    assert values(memory)[-1] == 0.9


@pytest.mark.parametrize("key", ["gate", "subject", "commit", "figures", "environment", "time"])
@pytest.mark.parametrize(
    "value", ["\ud800", "\0", math.inf, -1, True, {}, {"\ud800": 1}, {"a": [[1]]}, None, ""]
)
def test_any_value_of_a_key(folder: Path, key: str, value: Any) -> None:
    """Whatever a line holds, the other lines are read, and every question has an answer."""
    with file_of(folder, 2).open("ab") as file:
        file.write(changed(**{key: value}) + b"\n")
    memory = Memory(folder)
    kept = memory.series("cosine.min", gate="fidelity", shards="mini:L01")
    assert any(one.values[:2] == (0.99, 0.98) for one in kept)
    assert turns(memory) is not None
    assert compare(memory, f"{0:032x}", f"{1:032x}").same + memory.names().count("cosine.min") >= 1
    assert summaries(memory)


def test_other_types_of_values(tmp_path: Path) -> None:
    """Numbers, and texts of numbers that JSON has no form for; nothing else is a value."""
    figures: dict[str, Any] = {"a": "Infinity", "b": "text", "c": 2**60, "d": -0.5, "e": True}
    write(tmp_path, line(0, {**figures, "f": {"deep": [1]}, "g": None}))
    found = {one.figure: one.values for one in Memory(tmp_path).series()}
    assert found == {"a": (math.inf,), "c": (float(2**60),), "d": (-0.5,)}


@settings(max_examples=10)
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = write(tmp_path_factory.mktemp("any"), line(0, {"x": 1.0}))
    with file_of(folder, 0).open("ab") as file:
        file.write(data + b"\n")
    assert values(Memory(folder), "x") == [1.0]


def test_what_is_no_file_is_named(folder: Path) -> None:
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jsonl")
    memory = Memory(folder)
    assert [str(skip) for skip in memory.skipped] == [
        "pipe.jsonl cannot be read (it is no regular file)",
        "zero.jsonl cannot be read (it is no regular file)",
    ]


def test_nothing_to_ask(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"holds no record of a run; write some with: pytest"):
        Memory(tmp_path)


def test_backends_and_machines_are_series_of_their_own(tmp_path: Path) -> None:
    """Figures of the executor are one series over machines; a device's and a clock's are not."""
    write(
        tmp_path,
        line(0, {"x": 1.0}),
        line(1, {"x": 2.0}, chip="other"),
        line(2, {"x": 3.0}, backend="coreml", chip="M4"),
        line(3, {"x": 4.0}, backend="coreml", chip="M5"),
        line(4, {"x": 5.0}, gate="throughput"),
        line(5, {"x": 6.0}, gate="throughput", chip="other"),
    )
    found = sorted(one.values for one in Memory(tmp_path).series("x"))
    assert found == [(1.0, 2.0), (3.0,), (4.0,), (5.0,), (6.0,)]


def test_timed_gates_are_those_of_the_registry() -> None:
    assert [gate.name for gate in GATES.values() if gate.marker == "bench"] == [*TIMED]


@pytest.mark.parametrize(
    ("shards", "subjects"),
    [
        ("all", ["mini", "mini:L01", "mini:L02", "mini:d[a]", "big:L01"]),
        ("L01", ["mini:L01", "big:L01"]),
        ("mini:L01-L02", ["mini:L01", "mini:L02"]),
        ("mini", ["mini"]),
        ("d[a], L*", ["mini:L01", "mini:L02", "mini:d[a]", "big:L01"]),
    ],
)
def test_selections(shards: str, subjects: list[str]) -> None:
    every = ["mini", "mini:L01", "mini:L02", "mini:d[a]", "big:L01"]
    assert [subject for subject in every if matches(subject, shards)] == subjects


def test_the_run_before(folder: Path) -> None:
    memory, places = Memory(folder), {("fidelity", "mini:L01", ""): Place("cpu", "")}
    earlier = last_before(memory, f"{2:032x}", places)
    assert earlier is not None
    assert earlier.figures == {("fidelity", "mini:L01", ""): {"cosine.min": 0.98}}
    assert earlier.label == "000000000"
    newest = last_before(memory, "a run that has no line yet", places)
    assert newest is not None
    assert newest.time == "2026-01-03 10:00:00"
    assert last_before(memory, f"{0:032x}", places) is None


def test_the_run_before_is_of_the_same_backend_and_times_of_the_same_machine(
    tmp_path: Path,
) -> None:
    fast, slow = ({"gate": "throughput", "chip": chip} for chip in ("M4", "M1"))
    write(
        tmp_path,
        line(0, {"cosine.min": 0.9}),
        line(1, {"cosine.min": 0.8}, backend="coreml"),
        line(2, {"tok_s": 90.0}, **fast),
        line(3, {"tok_s": 20.0}, **slow),
    )
    memory, asked = Memory(tmp_path), ("fidelity", "mini:L01", "")
    of_cpu = last_before(memory, "", {asked: Place("cpu", "")})
    assert of_cpu is not None
    assert (of_cpu.time, of_cpu.figures[asked]) == ("2026-01-01 10:00:00", {"cosine.min": 0.9})
    of_nobody_knows = last_before(memory, "", {asked: Place("", "")})
    assert of_nobody_knows is not None
    assert of_nobody_knows.figures[asked] == {"cosine.min": 0.8}
    timed = ("throughput", "mini:L01", "")
    here = Place.of("throughput", {"backend": "cpu", "chip": "M4", "os": "macOS 26.1"})
    on_m4 = last_before(memory, "", {timed: here})
    assert on_m4 is not None
    assert on_m4.figures == {timed: {"tok_s": 90.0}}
    assert last_before(memory, "", {timed: Place("cpu", "|M2|")}) is None


def test_the_points_of_a_chart(folder: Path) -> None:
    (course,) = courses(Memory(folder))
    assert (course.subject, course.figure) == ("mini:L01", "cosine.min")
    assert [point.value for point in course.points[:2]] == [0.99, 0.98]
    assert course.points[1].time == "2026-01-02 10:00:00"
    assert course.step is not None


def test_git_gives_the_order(tmp_path: Path) -> None:
    """A commit that was measured late stands where it belongs; an unknown one stands by time."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(tmp_path, "init", "-q")
    ids = []
    for title in ("one", "two", "three"):
        git(tmp_path, *who, "commit", "-q", "--allow-empty", "-m", title)
        ids.append(git(tmp_path, "rev-parse", "HEAD").strip())
    folder = tmp_path / "history"
    measured = (ids[2], ids[0], "f" * 40, ids[1])
    write(folder, *(line(i, {"x": i}, commit=id_) for i, id_ in enumerate(measured)))
    memory = Memory(folder)
    assert [memory.commits.titles.get(run.commit, "") for run in memory.runs] == [
        "one", "", "two", "three"
    ]  # fmt: skip
    assert values(memory, "x") == [1.0, 2.0, 3.0, 0.0]
    assert memory.commits.find("HEAD~1") == ids[1]
    assert memory.commits.find("--all") == ""
