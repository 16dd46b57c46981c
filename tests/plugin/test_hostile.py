"""A package whose names are commands to a terminal or a CI: a run on GitHub obeys none of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_ane.report.run import read_run
from tests.hostile import check_lines
from tests.plugin.conftest import Project
from tests.tools.test_hostile import NAMES, hostile_package


@pytest.mark.slow
@pytest.mark.parametrize("more", [("-v",), ("-n1",)])
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_a_package(
    project: Project, name: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    package = hostile_package(project.path / "one", name)
    other = hostile_package(project.path / "other", "sound")
    project.manifest(
        f'[models.own.shard.a]\nartifact = "{package}"\nreference = "{other}"\n'
        f'[models.own.shard.b]\nartifact = "{package}"\nreference = "none"\n'
        "[models.own.policy.compression]\nmax-bytes = 1\n"
    )
    result = project.gate("--junitxml=out.xml", "--ane-report=out.jsonl", "-rA", *more)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*INTERNAL*")
    lines = [*result.outlines, *result.errlines]
    ours = [line for line in lines if line.startswith(("::error ", "::notice ", "::warning "))]
    assert ours
    check_lines(line for line in lines if line not in ours)
    assert max(map(len, ours)) < 13_000
    check_lines((project.path / "summary.md").read_text().split("\n"), longest=10_000)
    ElementTree.parse(project.path / "out.xml")
    assert read_run(project.path / "out.jsonl").rows
