"""The suite for the first run on a Mac, on replayed Macs, well and ill."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from pytest_ane.backends.coreml.process import Device
from pytest_ane.cli import main
from pytest_ane.mac import first_contact
from pytest_ane.mac.first_contact import Kit, Result, Setup, redacting, run, test_core_ml
from pytest_ane.mac.testing import (
    INTEL,
    VIRTUAL,
    DeviceRule,
    Failure,
    Mac,
    Replayer,
    Rewrite,
    Script,
    stale,
)
from tests.tools.conftest import AsJson, as_json

__all__ = ["as_json"]
NO_XCODE = Mac(compiler="")
REFUTED = {"plan_of_two_functions", "plan_of_a_package"}
"""By a replayed Mac that is well: its rules hold for each function, and it refuses the plan of a
package with an error."""


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child for Core ML, which takes two seconds to start."""
    monkeypatch.setattr(first_contact, "Device", lambda seconds: Device(None))


def setup_of(folder: Path, script: Script | None = None, seconds: float = 300) -> Setup:
    script = script or Script()
    replay, kit = script.save(folder / "script"), folder / "kit" / script.machine.build
    return Setup(kit, replay=str(replay), seconds=seconds)


def results(setup: Setup, keyword: str) -> Mapping[str, Result]:
    return {result.test: result for result in run(setup, keyword)}


def failed(results: Mapping[str, Result]) -> set[str]:
    return {name for name, result in results.items() if result.outcome == "failed"}


@dataclass(frozen=True)
class Case:
    """A Mac, the tests it is about, those that fail, and words of what was found."""

    script: Script
    keyword: str
    failed: set[str] = field(default_factory=set)
    found: Mapping[str, str] = field(default_factory=dict)


MACS: Mapping[str, Case] = {
    "virtual": Case(
        Script(VIRTUAL),
        "neural or virtual or image or real_div or evidence or gates or differ or workers",
        {"neural_engine", "virtual_machine"},
        {
            "neural_engine": "This is a virtual machine (VirtualMac2,1), which proves nothing",
            "evidence[conv-iOS18]": "recorded: nothing of the ANE",
            "arithmetic[real_div]": "this is a virtual machine (VirtualMac2,1), without an ANE",
            "units_differ[conv-iOS18]": "the gates run on the CPU alone",
        },
    ),
    "no-ane": Case(
        Script(INTEL),
        "neural or plan and iOS18",
        {"neural_engine"},
        {
            "neural_engine": "a Mac for which Core ML lists no Neural Engine (Macmini8,1)",
            "plan[conv-iOS18]": "3 of 3 compute ops on CPU",
        },
    ),
    "no-usage": Case(
        Script(devices=(DeviceRule("none"),)),
        "plan and iOS18 or gates",
        {"plan[conv-iOS18]", "gates[conv-iOS18]"},
        {
            "plan[conv-iOS18]": "0 of 3 compute ops on no device; Then placement",
            "gates[conv-iOS18]": "placement unproven",
        },
    ),
    "folding": Case(
        Script(rewrites=(Rewrite("relu*", "fold"), Rewrite("first*", "cast"))),
        "compiler",
        {"compiler[system-conv-iOS18]", "compiler[xcode-conv-iOS18]"},
        {"compiler[system-conv-iOS18]": "folds or renames 1 relu; Then a plan names other ops"},
    ),
    "crashing": Case(
        Script(failures=(Failure("state", times=None, effect="abort"),)),
        "state and not compiler or image",
        {"memory[state-reads]", "error[make-state]"},
        {
            "memory[state-reads]": "Core ML crashed while loading again and again (SIGABRT)",
            "error[make-state]": "Core ML crashed while make-state (SIGABRT)",
            "plan[state]": "5 of 5 compute ops on NeuralEngine",
        },
    ),
    "hanging": Case(
        Script(NO_XCODE, failures=(Failure("plan", times=None, effect="hang", path="*broken*"),)),
        "error or xcode",
        {"error[plan]"},
        {
            "error[plan]": "Core ML had not finished plan after 15 seconds and was ended",
            "compiler[xcode-state]": "there is no such compiler here",
            "error[load]": "the text ends too early",
        },
    ),
}


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("name", MACS)
def test_an_ill_mac(name: str, tmp_path: Path) -> None:
    case = MACS[name]
    found = results(setup_of(tmp_path, case.script, seconds=15), case.keyword)
    assert failed(found) == case.failed, found
    for test, words in case.found.items():
        assert words in found[test].found


@pytest.mark.drawn(0)
@pytest.mark.heavy
def test_a_mac_that_is_well(tmp_path: Path) -> None:
    setup = setup_of(tmp_path)
    found = results(setup, "not arithmetic or real_div")
    assert failed(found) == {*REFUTED, "units_differ[conv-iOS18]"}
    words = {
        "neural_engine": "Apple M4 Max, macOS 26.1 (25B78): Core ML lists CPU, GPU, ANE, 16 ANE",
        "image": "float32, differs by 0",
        "int8": "int8 [-8, 0, 0, 0, 0, 0, 0, 0], expected [-8.0, -7.0,",
        "gates[conv-iOS18]": "placement passed",
        "workers[conv-iOS18]": "placement passed",
        "evidence[conv-iOS18]": "recorded: conv-iOS18.fidelity.json, conv-iOS18.placement.json",
        "arithmetic[real_div]": "200 rows, the native module is replaced by pytest-ane",
    }
    for test, sentence in words.items():
        assert sentence in found[test].found
    assert len(found) == 35
    assert all(result.assumed for result in found.values())
    assert (setup.folder / "arithmetic" / "real_div.csv").read_text().startswith("# Outputs of")


@pytest.mark.drawn(1)
@pytest.mark.heavy
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    setup, moments = setup_of(tmp_path, Script(NO_XCODE)), random.Random(20)
    quick = "not (arithmetic or loads or gates or differ or evidence or workers or interrupt)"
    fork = multiprocessing.get_context("fork")
    for _ in range(10):
        process = fork.Process(target=run, args=(setup, quick))
        process.start()
        process.join(moments.uniform(0.2, 6))
        process.kill()
        process.join()
    found = results(setup, quick)
    assert failed(found) == REFUTED
    assert len(found) == 28
    lines = map(json.loads, (setup.folder / "results.jsonl").read_text().splitlines())
    assert {line["test"] for line in lines} == found.keys()


@pytest.mark.usefixtures("in_process")
def test_memory_that_is_not_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = iter((10**8, 2 * 10**8, 10**8, 10**8 + 10**7))
    monkeypatch.setattr(test_core_ml, "_resident", lambda: next(grown))
    monkeypatch.setattr(test_core_ml, "LOADS", 20)
    monkeypatch.setattr(test_core_ml, "READS", 20)
    found = results(setup_of(tmp_path, Script(NO_XCODE)), "memory")
    assert failed(found) == {"memory[loads]"}
    assert found["memory[loads]"].found.startswith("100.0 MB more, ")


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_what_did_not_fail_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_of(tmp_path, Script(NO_XCODE))
    first = results(setup, "functions or image or virtual")
    with (setup.folder / "results.jsonl").open("a") as file:
        file.write('{"of": {}, "node": "test_core_ml.py::te')  # Half a line of a killed run.
    asked: list[str] = []
    ask = Kit.ask

    def watched(self: Kit, *arguments: object) -> object:
        asked.append(self._item.name)
        return ask(self, *arguments)

    monkeypatch.setattr(Kit, "ask", watched)
    assert results(setup, "functions or image or virtual") == first
    assert asked == ["test_plan_of_two_functions"], "which failed"
    results(replace(setup, manifest="b.toml"), "image")
    assert asked[1:] == ["test_image"], "of another manifest"


@pytest.mark.usefixtures("in_process")
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: Kit, name: str) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Kit, "compiled", pressed)
    setup = setup_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(setup, "neural or image")
    assert "test_neural_engine" in (setup.folder / "results.jsonl").read_text()
    assert "test_image" not in (setup.folder / "results.jsonl").read_text()


@pytest.mark.drawn(2)
@pytest.mark.heavy
def test_ctrl_c_counts_though_the_suite_runs_in_the_background(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (found,) = run(setup_of(tmp_path), "interrupt")
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.outcome == "passed", found


@pytest.mark.usefixtures("in_process")
def test_models_of_an_earlier_build(tmp_path: Path) -> None:
    (found,) = run(setup_of(tmp_path, Script(NO_XCODE)), "another_build")
    assert found.outcome == "skipped"
    upgraded = Script(Mac(build="26A100", compiler=""), failures=(stale("load"),))
    (found,) = run(setup_of(tmp_path, upgraded), "another_build")
    assert found.outcome == "passed"
    assert found.found.startswith("25B78: Failed to build the model execution plan")


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_command(
    tmp_path: Path,
    as_json: AsJson,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It lists, fails where a test fails, and packs no personal data; recordings are replayed."""
    home = tmp_path / "anna-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "annabel")
    monkeypatch.setattr("socket.gethostname", lambda: "annas-mac.local")
    monkeypatch.chdir(home)
    replay = Script(NO_XCODE).save(home / "script")
    command = ["first-contact", f"--replay={replay}", "-k"]
    assert main([*command, "functions or error"]) == 1
    out, err = capsys.readouterr()
    assert "failed   plan_of_two_functions: A plan says it for the default function alone." in out
    assert err == "pytest-ane: 1 of 5 tests failed; see above.\n"
    answer = as_json(*command, "image")
    assert [result["outcome"] for result in answer["results"]] == ["passed"]
    with ZipFile(answer["archive"]) as archive:
        archive.extractall(tmp_path / "sent")
        texts = [archive.read(name) for name in archive.namelist() if ".safetensors" not in name]
    everything = b"\n".join(texts).decode()
    assert "FOLDER" in everything
    for word in ("anna", str(tmp_path)):
        assert word not in everything
    with Replayer(tmp_path / "sent" / "recordings" / "plan-functions") as replayer:
        assert replayer.script.machine == NO_XCODE


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = Script().save(tmp_path / "script")
    arguments = [f"--replay={replay}", f"--folder={tmp_path / 'kit'}", "-k", "nothing_of_the_kind"]
    assert main(["first-contact", *arguments]) == 1
    assert "-k 'nothing_of_the_kind': no test has such a name" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["first-contact", "--seconds=nan"])


def test_where_there_is_no_core_ml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first-contact"]) == 1
    assert "first-contact runs on a Mac, and there is no Core ML here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("user", "text", "shown"),
    [
        ("jane", "/Users/jane/x jane JANE jane_doe-jane", "~/x USER USER USER_doe-USER"),
        ("jane", "file:///Users/jane/x by janet", "file://~/x by janet"),
        ("jane doe", "/Users/jane%20doe/x /Users/jane\\ doe", "~/x ~"),
        ("jörg", "/Users/j%C3%B6rg/x jo\u0308rg J\u00d6RG", "~/x USER USER"),
        ("jörg", "j\\u00f6rg", "USER"),
        ("jane", "/Users/jane.smith /Users/janet", "~.smith /Users/janet"),
    ],
)
def test_names_in_other_forms(
    user: str, text: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: user)
    monkeypatch.setattr(Path, "home", lambda: Path("/Users", user))
    assert redacting(tmp_path)(text) == shown
