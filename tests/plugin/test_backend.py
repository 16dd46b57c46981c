"""`--ane-backend` and its ini twin: gates run by Core ML, on a Mac that is not there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from pytest_ane.mac.testing import (
    INTEL,
    TRANSLATED,
    VIRTUAL,
    DeviceRule,
    Failure,
    Mac,
    Replayer,
    Script,
    code_14,
)
from tests.plugin.conftest import Project

CORE_ML = "--ane-backend=coreml"
OWN = """\
from pytest_ane.gates.verdict import Verdict


@pytest.mark.gate
def test_fidelity(ane_shard, ane_gate):
    ane_gate(Verdict(gate="fidelity", subject=ane_shard.qualified))
"""


@contextmanager
def mac(*failures: Failure) -> Iterator[None]:
    """A Mac without Xcode."""
    with Replayer(Script(Mac("Apple M4 Max", "26.1", "25B78", compiler=""), failures=failures)):
        yield


@pytest.fixture
def mixed(project: Project) -> Project:
    """Packages that pass, fail and cannot be compared."""
    return project.packages(good="float32", other="good", nan="none", weightless="none")


def verdicts(result: pytest.RunResult) -> list[str]:
    """The table's lines, and what says why."""
    return [line for line in result.outlines if line.startswith(("passed  ", "FAILED  ", "  - "))]


def test_verdicts_are_those_of_the_executor(mixed: Project) -> None:
    cpu = mixed.gate("-k", "fidelity")
    with mac():
        found = mixed.gate("-k", "fidelity", CORE_ML, "--ane-cache=cache")
    assert verdicts(found) == verdicts(cpu)
    assert len(verdicts(cpu)) > 4
    assert found.parseoutcomes() == cpu.parseoutcomes()
    assert len(list((mixed.path / "cache" / "compiled").iterdir())) == 5


def test_the_header_names_chip_system_and_units(mixed: Project) -> None:
    with mac():
        found = mixed.gate("-k", "weightless and fidelity", CORE_ML)
    found.stdout.fnmatch_lines(
        [
            "ane: all · shards 4 of 4 · backend coreml · Apple M4 Max, macOS 26.1 (25B78) · "
            "CPU_AND_NE · placement by Core ML's plan · *"
        ]
    )


NO_ANE = [
    (VIRTUAL, "a virtual machine (VirtualMac2,1)"),
    (TRANSLATED, "a Mac whose Python runs under Rosetta (Mac16,5)"),
    (INTEL, "a Mac for which Core ML lists no Neural Engine (Macmini8,1)"),
    (Mac(cores=0), "a Mac for which Core ML lists no Neural Engine (Mac16,5)"),
]


@pytest.mark.parametrize(("machine", "kind"), NO_ANE)
def test_without_an_ane_device_gates_are_unproven(
    project: Project, machine: Mac, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    project.packages(good="float32")
    with Replayer(Script(machine, (DeviceRule("CPU"),))):
        found = project.gate(CORE_ML)
    found.assert_outcomes(passed=1, failed=2, deselected=1)
    why = f"This is {kind}, which proves nothing of the ANE"
    found.stdout.fnmatch_lines(
        [
            f"ane: * · {kind}, which proves nothing of the ANE · *",
            f"UNPROVEN own:good  fidelity    {why}*",
            f"UNPROVEN own:good  placement   {why}*",
            "passed   own:good  compression *",
        ]
    )


def test_without_an_ane_a_gate_of_the_user_s_own_passes_nothing(project: Project) -> None:
    project.packages(good="float32")
    project.own_gate(OWN)
    with Replayer(Script(VIRTUAL)):
        found = project.gate(CORE_ML, "-k", "fidelity")
    found.assert_outcomes(failed=1, deselected=3)
    found.stdout.fnmatch_lines(["UNPROVEN own:good  fidelity *This is a virtual machine*"])


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["", "stateful = true\ncontext = 32\n"])
def test_a_whole_model_runs_on_it_too(project: Project, keeps: str) -> None:
    project.llama().replace("max-tokens", f"{keeps}max-tokens")
    cpu = project.gate("-k", "behaviour or (fidelity and L01)")
    with mac():
        found = project.gate("-k", "behaviour or (fidelity and L01)", CORE_ML)
    assert verdicts(found) == verdicts(cpu)
    found.assert_outcomes(passed=2, deselected=11)


def test_what_is_compiled_again_is_said_in_the_summary(project: Project) -> None:
    project.packages(good="none")
    with mac():
        project.gate("-k", "fidelity", CORE_ML, "--ane-cache=cache")
    with mac(code_14("load")):
        found = project.gate("-k", "fidelity", CORE_ML, "--ane-cache=cache")
    found.assert_outcomes(passed=1, deselected=3)
    found.stdout.fnmatch_lines(
        [
            "note: own:good: Core ML refused its compiled model (-14); it is compiled again.",
            "passed   own:good  fidelity *",
        ]
    )


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML")
def test_without_core_ml_it_is_a_usage_error(mixed: Project) -> None:
    result = mixed.gate(CORE_ML)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    assert line.startswith("ERROR: The backend coreml needs Core ML, and coremltools has none here")
    assert "use --ane-backend=cpu" in line


@pytest.mark.parametrize(("platform", "backend"), [("darwin", "coreml"), ("linux", "cpu")])
def test_by_default_the_system_settles_it(
    mixed: Project, monkeypatch: pytest.MonkeyPatch, platform: str, backend: str
) -> None:
    monkeypatch.setattr("pytest_ane.plugin._options.sys.platform", platform)
    with mac():
        for auto in ((), ("--ane-backend=auto",)):
            found = mixed.gate("-k", "weightless and fidelity", *auto)
            found.stdout.fnmatch_lines([f"ane: all · * · backend {backend} · *"])


@pytest.mark.drawn
@pytest.mark.heavy
def test_workers_run_it_and_their_notes_arrive(project: Project) -> None:
    script: Path = Script(Mac(compiler=""), failures=(code_14("load"),)).save(
        project.path / "script"
    )
    result = project.packages(good="none").pytester.runpytest_subprocess(
        "-p", "pytest_ane.mac.testing", f"--ane-replay={script}", "-n1", "--ane-shards=all",
        "-m", "gate", "-k", "fidelity", CORE_ML, "--ane-cache=cache",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["note: own:good: Core ML refused its compiled model (-14); it is compiled again."]
    )


# `--ane-device-timeout` and its ini twin: Core ML in a process of its own, through whole runs.

CHILD = "--ane-device-timeout=60"


def replayed(project: Project, *options: str, failure: Failure | None = None) -> pytest.RunResult:
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
        replayed(project, "--ane-record", option)
        return {file.name: file.read_bytes() for file in folder.rglob("*.json")}

    here = recorded("--ane-device-timeout=0")
    assert len(here) == 6
    assert recorded(CHILD) == here


@pytest.mark.drawn
@pytest.mark.slow
def test_a_crash_is_one_red_gate_and_the_next_shard_runs(project: Project) -> None:
    project.packages(good="float32", other="none")
    failure = Failure("predict", effect="abort")
    result = replayed(project, CHILD, "-k", "fidelity", failure=failure)
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    result.stdout.fnmatch_lines(["*Core ML crashed while predicting (SIGABRT)*"])
