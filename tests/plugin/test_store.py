"""`--ane-store`: what another machine built is fetched, verified, and judged alike."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.mac.testing import Replayer, Script
from tests.plugin.conftest import Project

DEVICE = """
[models.own.policy.placement]
require = "plan"

[models.own.policy.fidelity]
require = "device"
"""


def figures(project: Project, junit: str) -> dict[str, str]:
    """What JUnit has of the verdicts, but for times and folders."""
    text = (project.path / junit).read_text()
    kept = re.findall(r'name="(ane\.[^"]*)" value="([^"]*)"', text)
    facts = [(name, value) for name, value in kept if name != "ane.note"]
    return {f"{number} {name}": value for number, (name, value) in enumerate(facts)}


def refuse(*_: object) -> None:
    raise AssertionError("built again")


@pytest.fixture
def filled(project: Project) -> Project:
    """A project whose store has what `head.0` takes."""
    result = project.llama().gate(
        "--ane-cache=first", "--ane-store=store", "--junitxml=first.xml", shards="head.0"
    )
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["store */store: 0 entries fetched, 4 stored"])
    return project


@pytest.mark.slow
def test_a_second_machine_builds_nothing_and_judges_alike(
    filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ane.make.shard._build", refuse)
    result = filled.gate(
        "--ane-cache=second", "--ane-store=store", "--junitxml=second.xml", shards="head.0"
    )
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*cache *second · store */store*",
            "ane: 1 shard to fetch from */store or to build, *",
            "store */store: 3 entries fetched, 0 stored",
        ]
    )
    assert figures(filled, "second.xml") == figures(filled, "first.xml")


@pytest.mark.slow
def test_a_file_that_was_spoilt_is_said_built_here_and_replaced(
    filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive,) = (filled.path / "store" / "artifacts").iterdir()
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-20000] + bytes(20000))
    result = filled.gate(
        "--ane-cache=second", "--ane-store=store", "--junitxml=second.xml", shards="head.0"
    )
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["note: *head.0: artifacts/* in the store */store is damaged: *"])
    assert figures(filled, "second.xml") == figures(filled, "first.xml")
    monkeypatch.setattr("pytest_ane.make.shard._build", refuse)
    third = filled.gate("--ane-cache=third", "--ane-store=store", shards="head.0")
    third.assert_outcomes(passed=3, deselected=1)


@pytest.fixture
def recorded(project: Project, genuine: None) -> Project:
    """A project whose evidence a Mac recorded and stored; its own folder is gone."""
    project.packages(DEVICE, good="float32")
    with Replayer(Script()):
        result = project.gate(
            "--ane-backend=coreml", "--ane-record", "--ane-cache=mac", "--ane-store=store"
        )
    result.assert_outcomes(passed=3, deselected=1)
    shutil.move(project.path / "evidence", project.path / "macs")
    return project


@pytest.mark.slow
def test_evidence_of_a_mac_is_fetched_and_lies_in_the_folder(recorded: Project) -> None:
    result = recorded.gate("--ane-cache=here", "--ane-store=store")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["evidence: * fetched, * verified *"])
    for file in (recorded.path / "evidence").rglob("*.json"):
        name = file.relative_to(recorded.path / "evidence")
        assert file.read_bytes() == (recorded.path / "macs" / name).read_bytes()
    recorded.gate("--ane-cache=here", "--ane-store=none").assert_outcomes(passed=3, deselected=1)


def edited(data: bytes) -> bytes:
    return data.replace(b"Apple", b"Bpple")


def of_another(data: bytes) -> bytes:
    return b"{}"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [edited, of_another, lambda data: data[:100]])
def test_evidence_that_is_not_whole_proves_nothing(
    recorded: Project, spoil: Callable[[bytes], bytes]
) -> None:
    for file in (recorded.path / "store" / "evidence").iterdir():
        file.write_bytes(spoil(file.read_bytes()))
    result = recorded.gate("--ane-cache=here", "--ane-store=store", "-k", "placement")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["note: own:good: its evidence of placement in the store *"])
    assert not (recorded.path / "evidence").exists()


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.parametrize("where", ["ini", "manifest"])
def test_the_store_of_the_ini_file_and_of_the_manifest(
    where: str, filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "ini":
        filled.pytester.makeini("[pytest]\nane_store = store\n")
    else:
        filled.head('[run]\nstore = "store"\n')
    monkeypatch.setattr("pytest_ane.make.shard._build", refuse)
    filled.gate("--ane-cache=second", shards="head.0").assert_outcomes(passed=3, deselected=1)


@pytest.mark.drawn(3)
@pytest.mark.slow
def test_a_cache_holds_no_more_than_it_may(project: Project, tmp_path: Path) -> None:
    project.llama()
    project.pytester.runpytest_subprocess(
        "--ane-shards=head.0", "-mgate", "--ane-cache=cache", "--ane-store=store"
    )
    (before,) = (project.path / "cache" / "artifacts").iterdir()
    os.utime(before, (1, 1))
    project.head('[run]\nmax-cache = "1 kB"\n')
    project.pytester.runpytest_subprocess(
        "--ane-shards=L01", "-mgate", "-kplacement", "--ane-cache=cache", "--ane-store=store"
    ).assert_outcomes(passed=1, deselected=3)  # fmt: skip
    (after,) = (project.path / "cache" / "artifacts").iterdir()
    assert after != before
    assert len(list((project.path / "store" / "artifacts").iterdir())) == 2
