"""`pytest-ane evidence compare`: what it prints, its exit code, and what it does not compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ane.records.record import Record
from pytest_ane.records.store import Store
from tests.mlprogram.packages import doubling
from tests.records.test_compare import FIDELITY
from tests.tools.conftest import AsJson, Says
from tests.tools.test_evidence import REQUIRED, SHARDS, plan, recorded

Call = Callable[..., list[str]]
PAIR = "macOS 26.1 (25B78) -> macOS 27.0 (26A100)"


def of(shard: str, os: str, build: str, device: str = "ANE", **environment: str) -> Record:
    made = recorded(shard)
    more = {"os": os, "os_build": build, **environment}
    return replace(made, environment={**made.environment, **more}, measurement=plan(device))


def old(shard: str, device: str = "ANE", **environment: str) -> Record:
    return of(shard, "macOS 26.1", "25B78", device, **environment)


def new(shard: str, device: str = "ANE", **environment: str) -> Record:
    return of(shard, "macOS 27.0", "26A100", device, **environment)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two packages, evidence of macOS 26.1 in `evidence`, and another folder for what is newer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for shard in ("L00", "L01"):
        doubling().save(Path(shard)).rename(f"{shard}.mlpackage")
        Store(Path("evidence")).write(old(shard))
    Path("shards.toml").write_text(REQUIRED + SHARDS)
    (folder := Path("newer")).mkdir()
    return Store(folder)


@pytest.fixture
def call(other: Store, says: Says) -> Call:
    def run(*arguments: str, code: int = 0, by: str = "os") -> list[str]:
        options = (f"--by={by}", "--cache=cache")
        return says("evidence", "compare", other.folder, *arguments, *options, code=code)

    return run


def test_nothing_differs(call: Call, other: Store) -> None:
    for shard in ("L00", "L01"):
        other.write(new(shard))
    assert call() == [f"{PAIR}: 2 gates of m:L00-L01 compared", "  nothing differs"]


def test_a_gate_that_fails_on_the_newer_system(call: Call, other: Store) -> None:
    other.write(new("L00"))
    other.write(new("L01", "CPU"))
    lines = call(code=1)
    assert [line.split() for line in lines[1:7]] == [
        ["verdicts", "that", "differ:"],
        ["subject", "gate", "was", "is", "why"],
        ["m:L01", "placement", "passed", "failed", "add", "`y`", "runs", "on", "the", "CPU",
         "instead", "of", "the", "ANE"],
        ["1", "operation", "that", "moved:"],
        ["subject", "each", "type", "moved", "names"],
        ["m:L01", "1", "add", "ANE", "->", "CPU", "y"],
    ]  # fmt: skip
    assert not any("ane_ops" in line for line in lines)  # It counts what is listed.
    assert lines[-1] == "pytest-ane: 1 gate passes on one system and not on another."


def test_as_json(as_json: AsJson, other: Store) -> None:
    other.write(new("L01", "CPU"))
    found = as_json("evidence", "compare", "newer", "--by=os", "--cache=cache", code=1)
    assert found["error"] == "1 gate passes on one system and not on another."
    (one,) = found["compared"]
    assert one["moves"] == [
        {"function": "main", "op": "add", "name": "y", "old": "ANE", "new": "CPU"}
    ]
    assert (one["old"]["name"], one["new"]["name"]) == ("macOS 26.1 (25B78)", "macOS 27.0 (26A100)")
    assert (one["old"]["verdict"]["status"], one["new"]["verdict"]["status"]) == (
        "passed", "failed"
    )  # fmt: skip
    (lone,) = found["not_compared"]
    assert (lone["file"], lone["kind"]) == ("evidence/m/L00.placement.json", "alone")


def close(made: Record, cosine: float) -> Record:
    (comparison,) = FIDELITY.comparisons
    two = tuple(replace(comparison, probe=probe, cosines=(cosine,)) for probe in "gh")
    measurement = replace(FIDELITY, comparisons=two, coverage=(), unmoved=())
    return replace(made, gate="fidelity", measurement=measurement)


def test_figures_by_how_far_they_moved(call: Call, other: Store) -> None:
    """What is measured is made up, so the packages are taken away."""
    for shard, cosine in (("L00", 0.9815), ("L01", 0.99)):
        Store(Path("evidence")).write(close(old(shard), 0.98))
        other.write(close(new(shard), cosine))
    for shard in ("L00", "L01"):
        Path(f"{shard}.mlpackage").rename(f"{shard}.gone")
    lines = call()
    at = lines.index("  figures that moved:")
    assert lines[at + 1].split() == ["subject", "gate", "figure", "was", "is", "noise"]
    cosines = [line.split() for line in lines[at:] if "cosine.min" in line]
    assert cosines == [
        ["m:L01", "fidelity", "cosine.min", "0.9800", "0.9900", "0.00098"],
        ["m:L00", "fidelity", "cosine.min", "0.9800", "0.9815", "0.00098"],
    ]


def test_the_policy_of_today_judges(call: Call, other: Store) -> None:
    other.write(new("L00", "CPU"))
    Path("shards.toml").write_text(f"{REQUIRED}placement.allow-off = ['add']\n{SHARDS}")
    assert not any("verdicts that differ" in line for line in call("--shards=L00"))


def test_systems_that_the_policy_no_longer_takes_are_compared(call: Call, other: Store) -> None:
    """What counts today is of the newer system alone, and too old is what it is compared with."""
    policy = "evidence = { os = ['macOS 27'], max-age = '1 hour' }\n"
    Path("shards.toml").write_text(f"{REQUIRED}{policy}{SHARDS}")
    other.write(new("L00"))
    assert "nothing differs" in call("--shards=L00")[1]


def test_what_is_not_built_is_held_against_other_evidence_alone(call: Call, other: Store) -> None:
    other.write(new("L00"))
    other.write(replace(new("L01"), files={"L01/Manifest.json": "0" * 64}))
    for shard in ("L00", "L01"):
        Path(f"{shard}.mlpackage").rename(f"{shard}.gone")
    lines = call()
    assert lines[0] == f"{PAIR}: 1 gate of m:L00 compared"
    assert lines[2] == "not held against their packages, which are not built here: m:L00-L01"
    assert lines[3] == "not compared: 2 files"
    says = "is of other bytes than the evidence of any other system"
    assert lines[4:] == [f"  {at}/m/L01.placement.json: {says}" for at in ("evidence", "newer")]


def test_unused_evidence_and_copies(call: Call, other: Store) -> None:
    other.write(replace(old("L00"), subject="gone:L00"))
    other.write(old("L01"))
    lines = call(code=1)
    assert "  newer/gone/L00.placement.json: no shard of the manifest uses it" in lines
    assert "  newer/m/L01.placement.json: is the same record as one that is compared" in lines
