"""The kit from its command to its table, on replayed Macs, well and ill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic, sleep

import pytest

from pytest_ane.cli import main
from pytest_ane.first_contact import STEPS, Run, Setup, read_archive
from pytest_ane.testing import Failure, Mac, Replayer, Script, stale
from tests.first_contact.macs import MACS
from tests.tools.conftest import AsJson

pytestmark = pytest.mark.heavy
SLOW = ("arithmetic", "workers", "gates", "evidence")
"""Steps of half a minute together."""


def first_contact(folder: Path, script: Script, *more: str) -> list[str]:
    """Arguments of a run in a folder."""
    replay = script.save(folder / "script")
    return ["first-contact", f"--folder={folder / 'kit'}", f"--replay={replay}", *more]


def skipping(steps: Iterable[str]) -> list[str]:
    return [f"--skip={step}" for step in steps]


def archive_of(folder: Path) -> Path:
    (path,) = (folder / "kit").glob("*.zip")
    return path


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "well" else pytest.mark.drawn) for name in MACS],
)
def test_a_mac_and_its_table(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = MACS[name]
    options = [] if name == "well" else skipping(set(SLOW) - case.sentences.keys())
    options += ["--seconds=20"] if name == "hanging" else []
    assert main(first_contact(tmp_path, case.script, *options)) == 0
    capsys.readouterr()
    assert main(["first-contact", "--read", str(archive_of(tmp_path))]) == 0
    table = capsys.readouterr().out.splitlines()
    for step, sentence in case.sentences.items():
        answers = [
            found for assumed, found in zip(table[::2], table[1::2], strict=True)
            if f" {step}: " in assumed
        ]  # fmt: skip
        assert any(sentence in found for found in answers), (step, answers)


@pytest.mark.drawn
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path, as_json: AsJson) -> None:
    arguments = first_contact(tmp_path, Script(), *skipping(("arithmetic", "workers")))
    command = [sys.executable, "-m", "pytest_ane.cli", *arguments]
    moments = random.Random(20)
    for _ in range(10):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            run.wait(moments.uniform(0.5, 12))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
        run.communicate()
    result = as_json(*arguments)
    assert set(result["facts"]) == set(STEPS) - {"arithmetic", "workers"}
    assert not [n for n, facts in result["facts"].items() if {"ended", "failed"} & facts.keys()]
    refuted = [f["assumed"] for f in result["findings"] if f["holds"] is False]
    assert refuted == [
        "A plan says it for the default function alone.",
        "Planning a package ends the process.",
        "The ANE computes otherwise than the CPU.",
    ]  # As a replayed Mac that is well answers.


def test_facts_of_a_killed_run_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = first_contact(tmp_path, Script(), *skipping(set(STEPS) - {"machine", "plans"}))
    assert main(arguments) == 0
    assert "2 of 2 steps to run" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "0 of 2 steps to run" in capsys.readouterr().out


def child_of(folder: Path, script: Script, step: str, seconds: float) -> subprocess.Popen[bytes]:
    """The process that runs a step, as its parent starts it."""
    setup = Setup(folder / "kit", replay=str(script.save(folder / "script")))
    Run(setup, [step], seconds)
    command = [sys.executable, "-m", "pytest_ane.first_contact", str(setup.folder), f"{seconds:g}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def test_a_hang_does_not_outlive_its_time_though_nobody_ends_it(tmp_path: Path) -> None:
    script = Script(failures=(Failure("load", effect="hang"),))
    with child_of(tmp_path, script, "load-error", 15) as child:
        assert child.wait(120) == -signal.SIGALRM


def test_gates_end_with_the_run_that_started_them(tmp_path: Path) -> None:
    def members() -> list[str]:
        command = ["ps", "-eo", "pgid=,stat="]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows = (line.split() for line in done.stdout.splitlines())
        return [state for group, state in rows if group == str(child.pid) and state[0] != "Z"]

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = monotonic() + 120
        while not condition():
            assert monotonic() < deadline
            sleep(0.1)

    with child_of(tmp_path, Script(), "gates", 300) as child:
        wait_until((tmp_path / "kit" / "work" / "gates").exists)
        assert len(members()) > 1, "pytest is running"
        assert child.stdin
        child.stdin.close()
        wait_until(lambda: not members())


def test_ctrl_c_counts_though_the_kit_runs_in_the_background(
    tmp_path: Path, as_json: AsJson
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = as_json(*first_contact(tmp_path, Script(), *skipping(set(STEPS) - {"interrupt"})))
    finally:
        signal.signal(signal.SIGINT, before)
    (finding,) = (f for f in result["findings"] if f["step"] == "interrupt")
    assert finding["holds"] is True, finding


def test_a_mac_is_kept_awake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "caffeinate"
    tool.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\nexec sleep 300\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main(first_contact(tmp_path, Script(), *skipping(set(STEPS) - {"machine"}))) == 0
    assert (tmp_path / "asked").read_text() == f"-i -w {os.getpid()}\n"


def test_recordings_become_fixtures(tmp_path: Path, as_json: AsJson) -> None:
    script = Script(MACS["virtual"].script.machine)
    as_json(*first_contact(tmp_path, script, *skipping(set(STEPS) - {"machine", "plans"})))
    result = as_json(
        "first-contact", "--read", str(archive_of(tmp_path)), "--fixtures", str(tmp_path / "made")
    )
    (fixture,) = map(Path, result["fixtures"])
    assert Script.load(fixture).machine == script.machine
    with Replayer(fixture) as replayer:
        assert replayer.script.machine.virtual


def test_the_archive_holds_no_personal_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "anna-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "annabel")
    monkeypatch.setattr("socket.gethostname", lambda: "annas-mac.local")
    monkeypatch.chdir(home)
    steps = ("machine", "plan-error", "predict-error")
    assert main(first_contact(home, Script(), *skipping(set(STEPS) - set(steps)))) == 0
    log = home / "kit" / Script().machine.build / "log.txt"
    log.write_text(f"{home}/x by annabel on annas-mac.local, annas-mac\n{os.sep}")
    assert main(first_contact(home, Script(), *skipping(set(STEPS) - set(steps)))) == 0
    archive = read_archive(archive_of(home))
    everything = b"\n".join(archive.files.values()).decode()
    assert "FOLDER" in everything
    assert "USER on HOST, HOST" in everything
    for word in ("anna", str(tmp_path)):
        assert word not in everything


def test_stale_models_of_an_earlier_build_are_met(tmp_path: Path, as_json: AsJson) -> None:
    skip = skipping(set(STEPS) - {"machine", "stale-model"})
    as_json(*first_contact(tmp_path, Script(), *skip))
    upgraded = Script(Mac(build="26A100"), failures=(stale("load"),))
    result = as_json(*first_contact(tmp_path, upgraded, *skip))
    (finding,) = (f for f in result["findings"] if f["step"] == "stale-model")
    assert finding["holds"] is True
    assert "25B78: " in finding["found"]
    assert "-14" in finding["found"]
