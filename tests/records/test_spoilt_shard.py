"""A repository of twenty commits, one of which spoils L11: the memory names both."""

from __future__ import annotations

import json

import pytest

from pytest_ane.cli import main
from tests.ci.repository import git
from tests.plugin.conftest import Project, Workshop, _loaded, project, workshop
from tests.plugin.projects import LLAMA, make_llama

__all__ = ["_loaded", "project", "workshop"]

SHARDS = "L09-L11"
SPOILT = """
[models.mini.shard.L11]
compression = { method = "palettize", nbits = 1 }
"""
WHO = ("-c", "user.name=a", "-c", "user.email=a@b")
COMMITS, FAULT = 20, 13


@pytest.mark.drawn
@pytest.mark.heavy
def test_the_commit_and_the_shard_are_named(
    project: Project, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_llama(project.path / "mini.gguf", blocks=12)
    manifest = LLAMA.format(source=source.name).replace("L00-L01, head.0-head.1", "L00-L11, head.0")
    git(project.path, "init", "-q")
    for number in range(COMMITS):
        project.manifest(manifest + (SPOILT if number >= FAULT else ""))
        (project.path / "notes.txt").write_text(f"{number}\n")
        git(project.path, "add", "shards.toml", "notes.txt")
        title = "Smaller weights" if number == FAULT else f"Notes {number}"
        git(project.path, *WHO, "commit", "-qm", title)
        result = project.gate("--ane-report=history/", "-q", shards=SHARDS)
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    fault = git(project.path, "log", "--format=%H", "--grep=Smaller weights").strip()
    capsys.readouterr()

    asked = ["history", "--manifest", str(project.path / "shards.toml")]
    assert main(asked) == 0
    output = capsys.readouterr().out
    [step] = [line for line in output.splitlines() if fault[:9] in line]
    assert "mini:L11" in step
    assert step.endswith("Smaller weights; another package")
    assert "L09" not in output.partition("steps,")[2]

    assert main([*asked, "--json"]) == 0
    turns = json.loads(capsys.readouterr().out)["steps"]
    assert {(turn["subject"], turn["run"]["commit"]) for turn in turns} == {("mini:L11", fault)}

    assert main([*asked, "cosine.min", "--shards", "L11"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == COMMITS
    assert [i for i, row in enumerate(rows) if "stepped: " in row] == [FAULT]
    bars = [row.count("#") for row in rows]
    assert set(bars[:FAULT]) == {20}
    assert set(bars[FAULT:]) == {1}
