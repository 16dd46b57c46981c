"""Archives of unknown origin, and folders in use."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from pytest_ane.backends.coreml import Machine
from pytest_ane.cli import main
from pytest_ane.first_contact import STEPS, Run, Setup, pack, read_archive
from pytest_ane.first_contact.archive import redacting
from pytest_ane.first_contact.results import Results
from pytest_ane.first_contact.run import describe
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.testing import Script
from tests.signals import heed_ctrl_c


def archive(folder: Path, **files: str) -> Path:
    path = folder / "a.zip"
    with ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "holds no facts"),
        ({"steps/machine.json": "{"}, "steps/machine.json is damaged"),
        ({"steps/machine.json": "[]"}, "is no JSON object"),
        ({"steps/machine.json": '{"a": NaN}'}, "steps/machine.json is damaged"),
        ({"../evil.json": "{}"}, "'../evil.json', which first-contact does not write"),
        ({"recordings/../x/script.json": "{}"}, "does not write"),
        ({"steps/machine.json": "{}", "extra.bin": ""}, "does not write"),
    ],
)
def test_archives_that_are_none(
    files: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["first-contact", "--read", str(archive(tmp_path, **files))]) == 1
    assert sentence in capsys.readouterr().err


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with pytest.raises(ExecutionError, match="cannot be read"):
        read_archive(path)
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ExecutionError, match=r"is no archive of first-contact, or damaged"):
        read_archive(path)


def test_facts_of_another_version_are_compared_as_far_as_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = archive(tmp_path, **{"steps/machine.json": '{"later": 1}', "steps/unknown.json": "{}"})
    assert main(["first-contact", "--read", str(path)]) == 0
    out = capsys.readouterr().out
    assert "the facts are damaged (KeyError: 'devices')" in out
    assert out.count("not run") >= 10


def test_a_required_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = '{"times": 240, "early": 0, "late": 0, "seconds": 1.0}'
    image = '{"dtype": "float32", "difference": 3.0}'
    path = archive(tmp_path, **{"steps/loads.json": loads, "steps/image.json": image})
    read = ["first-contact", "--read", str(path), "--require"]
    assert main([*read, "loads"]) == 0
    assert main([*read, "image"]) == 1
    assert "This is refuted: float32, differs by 3." in capsys.readouterr().err
    assert main([*read, "state-reads"]) == 1
    assert "This is not known: not run." in capsys.readouterr().err
    assert main([*read, "nothing"]) == 1
    assert "There is no step 'nothing'; there are machine, compilers" in capsys.readouterr().err


def test_where_there_is_no_core_ml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first-contact"]) == 1
    assert "first-contact runs on a Mac, and there is no Core ML here" in capsys.readouterr().err


def test_fixtures_need_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first-contact", "--fixtures", str(tmp_path)]) == 1
    assert "name it with --read" in capsys.readouterr().err


def test_fixtures_do_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"steps/machine.json": "{}", "recordings/plans/script.json": "{}"}
    command = ["first-contact", "--read", str(archive(tmp_path, **files)), "--fixtures"]
    assert main([*command, str(tmp_path / "made")]) == 0
    assert main([*command, str(tmp_path / "made")]) == 1
    assert "exists; name another folder" in capsys.readouterr().err


def test_a_run_with_another_setup(tmp_path: Path) -> None:
    Run(Setup(tmp_path, "L01"), ["machine"], 300)
    with pytest.raises(ExecutionError, match="holds a run with another shard"):
        Run(Setup(tmp_path, "L02"), ["machine"], 300)


def test_a_folder_in_use(tmp_path: Path) -> None:
    import filelock

    run = Run(Setup(tmp_path), ["machine"], 300)
    with filelock.FileLock(tmp_path / "lock"), pytest.raises(ExecutionError, match="another run"):
        next(iter(run))


def test_half_a_fact_is_measured_again(tmp_path: Path) -> None:
    run = Run(Setup(tmp_path), ["machine", "plans"], 300)
    (tmp_path / "steps" / "machine.json").write_text('{"chip": "App')
    assert run.results.left() == ["machine", "plans"]
    run.results.write("machine", {})
    assert run.results.left() == ["plans"]


def test_what_failed_is_measured_again_and_what_hung_with_a_higher_limit(tmp_path: Path) -> None:
    steps = ("machine", "plans", "image")
    results = Run(Setup(tmp_path), steps, 20).results
    results.write("machine", {"failed": "BackendError: license not agreed to"})
    results.write("plans", {"hung": 20})
    results.write("image", {"ended": "SIGABRT"})
    assert Run(Setup(tmp_path), steps, 20).results.left() == ["machine"]
    assert Run(Setup(tmp_path), steps, float("inf")).results.left() == ["machine", "plans"]


def test_half_a_compiled_model_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "work" / "conv.unfinished.mlmodelc" / "half").mkdir(parents=True)
    setup = Setup(tmp_path / "a")
    monkeypatch.setattr(Setup, "machine", Machine("Apple M4", "macOS 26.1", "25B78", ""))
    monkeypatch.setattr(Setup, "package", lambda self, name: tmp_path / f"{name}.mlpackage")

    def compiled(package: Path, target: Path, *rest: object) -> None:
        target.mkdir()
        (target / "whole").touch()
        assert not setup.folder.joinpath("work", "conv.mlmodelc").exists()

    monkeypatch.setattr("pytest_ane.first_contact.steps.compile_package", compiled)
    assert [path.name for path in setup.compiled("conv").iterdir()] == ["whole"]


def test_how_a_process_ended() -> None:
    assert (describe(-6), describe(3)) == ("SIGABRT", "exit code 3")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_time_limit_of_nothing(
    seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = Script().save(tmp_path / "script")
    assert main(["first-contact", f"--replay={replay}", f"--seconds={seconds}"]) == 1
    assert f"--seconds {seconds}: give more than 0" in capsys.readouterr().err


def test_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = Script().save(tmp_path / "script")
    skipped = [f"--skip={name}" for name in STEPS]
    assert main(["first-contact", f"--replay={replay}", *skipped]) == 1
    assert "--skip leaves no step to run" in capsys.readouterr().err


def test_a_fact_that_is_not_finite_is_kept_and_read(tmp_path: Path) -> None:
    Run(Setup(tmp_path), ["image"], 300)
    Results(tmp_path).write("image", {"dtype": "float32", "difference": float("nan")})
    pack(tmp_path, tmp_path / "a.zip")
    archive = read_archive(tmp_path / "a.zip")
    assert archive.facts["image"] == {"dtype": "float32", "difference": "NaN"}


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


def test_a_shard_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Script().save(tmp_path / "script")
    monkeypatch.chdir(tmp_path)
    assert main(["first-contact", f"--replay={replay}", "--shard=L99"]) == 1
    assert "--shard L99: shards.toml does not exist; run" in capsys.readouterr().err
    assert not (tmp_path / "first-contact").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    replay, folder = Script().save(tmp_path / "script"), tmp_path / "kit"
    command = [sys.executable, "-m", "pytest_ane.cli", "first-contact", f"--replay={replay}"]
    run = subprocess.Popen(
        [*command, f"--folder={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert run.stdout
    while not run.stdout.readline().startswith("machine: "):
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    error = run.communicate(timeout=60)[1]
    assert (run.returncode, error) == (130, "pytest-ane: Interrupted.\n")
    assert Setup(folder / "25B78").folder.joinpath("steps/machine.json").exists()
