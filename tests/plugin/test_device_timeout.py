"""`--ane-device-timeout` and its ini twin: Core ML in a process of its own, through whole runs."""

from __future__ import annotations

import shutil
from datetime import datetime, tzinfo

import pytest

from pytest_ane.mac.testing import Failure, Mac, Replayer, Script
from tests.plugin.conftest import Project

CORE_ML = "--ane-backend=coreml"
CHILD = "--ane-device-timeout=60"


def run(project: Project, *options: str, failure: Failure | None = None) -> pytest.RunResult:
    script = Script(Mac(compiler=""), failures=(failure,) if failure else ())
    with Replayer(script):
        return project.gate(CORE_ML, "--ane-cache=cache", *options)


class Noon(datetime):
    """One moment, which evidence states to the second."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Noon:
        return cls(2026, 1, 1, 12, tzinfo=tz)


@pytest.mark.slow
def test_evidence_is_the_same_with_and_without_the_process(
    project: Project, genuine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ane.plugin.recording.datetime", Noon)
    project.packages(good="float32", other="none")
    folder = project.path / "evidence"

    def recorded(option: str) -> dict[str, bytes]:
        shutil.rmtree(folder, ignore_errors=True)
        run(project, "--ane-record", option)
        return {file.name: file.read_bytes() for file in folder.rglob("*.json")}

    here = recorded("--ane-device-timeout=0")
    assert len(here) == 6
    assert recorded(CHILD) == here


@pytest.mark.drawn
@pytest.mark.slow
def test_a_crash_is_one_red_gate_and_the_next_shard_runs(project: Project) -> None:
    project.packages(good="float32", other="none")
    failure = Failure("predict", effect="abort")
    result = run(project, CHILD, "-k", "fidelity", failure=failure)
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    result.stdout.fnmatch_lines(["*Core ML crashed while predicting (SIGABRT)*"])


@pytest.mark.drawn
@pytest.mark.slow
def test_a_hang_is_one_red_gate_and_the_next_shard_runs(project: Project) -> None:
    project.packages(good="float32", other="none")
    project.pytester.makeini("[pytest]\nane_device_timeout = 3 s\n")
    failure = Failure("load", effect="hang")
    result = run(project, "--ane-device-timeout=2s", "-k", "fidelity", failure=failure)
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    result.stdout.fnmatch_lines(["*Core ML had not finished loading after 2 seconds*"])
