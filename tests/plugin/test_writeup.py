"""`pytest-ane report --intent` and `--writeup`: from an intent over a run to a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.report.writeups import SECTIONS, WriteUp, read
from tests.plugin.conftest import Project

Command = Callable[..., list[str]]
STEM = "001-nan-is-red"


@pytest.fixture
def command(project: Project, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("--intent", "NAN")`: the lines that the command prints, of stderr if it fails."""

    def call(*arguments: str, code: int = 0) -> list[str]:
        capsys.readouterr()
        assert main(["report", *arguments]) == code
        out, err = capsys.readouterr()
        return (err if code else out).splitlines()

    return call


def page(project: Project, stem: str = STEM) -> WriteUp:
    return read(project.path / "experiments" / f"{stem}.md")


def test_from_an_intent_to_a_page(project: Project, command: Command) -> None:
    project.packages(good="none", nan="none")
    wrote, then, finish = command("--intent", "NaN is red", "--shards", "nan")
    assert wrote == f"wrote experiments/{STEM}.md"
    run = f"pytest --ane-shards=nan -m gate --ane-report=experiments/{STEM}.jsonl"
    assert then == f"next: {run}"
    assert finish == "then: pytest-ane report --writeup"
    (project.path / "experiments" / "README.md").write_text("what these are")

    result = project.run(*shlex.split(run)[1:], "-k", "not placement")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert command("--writeup") == [
        f"wrote experiments/{STEM}.md",
        "Not met: 1 of 2 verdicts passed; own:nan fidelity failed.",
    ]
    sections = page(project).sections
    assert list(sections) == [*SECTIONS]
    assert sections["Intent"] == "NaN is red"
    assert "`../shards.toml`, as it was when the intent was recorded" in sections["Setup"]
    assert "| own:nan | fidelity | FAILED |" in sections["Result"]
    assert sections["Surprise"].startswith("- **own:nan** fidelity failed: ")
    assert "Then run again: `pytest --ane-shards=own:nan " in sections["Next"]
    assert sections["Lesson"] == "*What you learned: write it here in place of this line.*"

    before = page(project).path.read_bytes()
    assert command("--writeup", "1")[0] == f"wrote experiments/{STEM}.md"
    assert page(project).path.read_bytes() == before
    (sentence,) = command("--writeup", code=1)
    assert "has only finished write-ups; name one" in sentence


def test_a_second_one_tells_what_changed(project: Project, command: Command) -> None:
    project.packages(good="none", nan="none")
    for number, limit in enumerate(("1 GB", "1 kB"), 1):
        project.packages(
            good="none", more=f'[models.own.policy.compression]\nmax-bytes = "{limit}"'
        )
        command("--intent", f"Budget of {limit}")
        file = f"experiments/00{number}-budget-of-{limit.lower().replace(' ', '-')}.jsonl"
        project.gate(f"--ane-report={file}", "-k", "compression")
        command("--writeup")
    surprise = page(project, "002-budget-of-1-kb").sections["Surprise"]
    assert "Since [001-budget-of-1-gb](001-budget-of-1-gb.md):" in surprise
    assert "- the manifest changed" in surprise
    assert "- own:good compression: passed -> failed" in surprise


def test_another_folder_and_names_with_blanks(
    project: Project, command: Command, tmp_path: Path
) -> None:
    (project.path / "my models").mkdir()
    project.packages(good="none")
    (project.path / "shards.toml").rename(project.path / "my models" / "a b.toml")
    (tmp_path / "kept here").mkdir()
    (project.path / "link").symlink_to(tmp_path / "kept here")
    intent = "für <b>Größe</b>\n+++ \x1b[2J \u202e"
    _, run, finish = command(
        "--intent", intent, "--manifest", "my models/a b.toml", "--folder", "link"
    )
    words = shlex.split(run.removeprefix("next: "))
    assert words[1:3] == ["--ane-manifest=my models/a b.toml", "--ane-shards=all"]
    project.run(*words[1:], "-k", "compression")
    wrote, *_ = command("--writeup", shlex.split(finish)[-1])
    assert wrote == "wrote link/001-fur-b-grosse-b-2j.md"
    writeup = read(project.path / "link" / "001-fur-b-grosse-b-2j.md")
    manifest = writeup.path.parent / writeup.head.manifest
    assert manifest.samefile(project.path / "my models" / "a b.toml")
    assert writeup.sections["Intent"] == r"für &#60;b>Größe&#60;/b> +++ \\x1b\[2J \\u202e"
    assert "as it was when the intent was recorded" in writeup.sections["Setup"]


@pytest.mark.slow
def test_results_of_other_commands_are_kept_for_a_later_finish(
    project: Project, command: Command
) -> None:
    project.packages(good="none")
    command("--intent", "One")
    project.gate("--ane-report=experiments/001-one.jsonl", "-k", "compression")
    (project.path / "r.json").write_text("{}")
    (sentence,) = command("r.json", "--writeup", code=1)
    assert "r.json is not what a command printed with --json" in sentence
    (project.path / "r.json").write_text(
        '{"command": "recommend", "candidates": '
        '[{"name": "6 bits", "size": 1e6, "kl": 0.1, "passed": true}],'
        '"best": {"name": "6 bits", "size": 1e6}}'
    )
    command("r.json", "--writeup")
    (project.path / "r.json").unlink()
    once = page(project, "001-one")
    assert "Recommended is 6 bits: 1.00 MB" in once.sections["Result"]
    (drawn,) = (project.path / "experiments").glob("001-one.*.svg")
    assert f"]({drawn.name})" in once.sections["Result"]
    assert drawn.read_text().startswith("<svg")
    assert once.beside(".recommend.json").is_file()
    command("--writeup", "1")
    assert page(project, "001-one") == once
