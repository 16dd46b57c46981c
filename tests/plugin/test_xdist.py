"""`-n 2`: verdicts arrive from the workers, each shard is built once, where the manifest says."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.plugin.conftest import Project
from tests.plugin.projects import COUNT


@pytest.mark.slow
def test_table_and_properties_arrive_and_nothing_is_built_twice(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.llama().pytester.makeconftest(COUNT)
    (project.path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(project.path / "scratch"))
    result = project.pytester.runpytest_subprocess(
        "-n2", "--ane-shards=head*", "-m", "gate", "--ane-cache=cache", "--junitxml=out.xml"
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(
        [
            "ane: head* · shards 2 of 4 · *",
            "warned   mini:head.0  placement *",
            "passed   mini:head.1  compression *",
            "6 gates: * warned, * passed *",
        ]
    )
    builds = [line.split() for line in (project.path / "builds.txt").read_text().splitlines()]
    assert sorted(shard for shard, _ in builds) == ["head.0", "head.1"]
    assert {Path(folder).parent for _, folder in builds} == {project.path / "scratch"}
    found = ElementTree.parse(project.path / "out.xml").iter("property")
    cosines = [p.get("value") for p in found if p.get("name") == "ane.cosine.min"]
    assert len(cosines) == 2
    assert all(float(str(value)) > 0.99 for value in cosines)
