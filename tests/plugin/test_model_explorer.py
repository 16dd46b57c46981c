"""`--ane-model-explorer`: graphs of the judged shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Project, refused
from tests.report.explorer import check, check_data


def files(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.drawn
def test_a_graph_and_its_data_for_every_judged_shard(project: Project) -> None:
    project.packages(good="float32", absent="none")
    project.gate("--ane-model-explorer=out/graphs", "--ane-blame=always", "-k", "not compression")
    found = files(project.path / "out" / "graphs")
    assert {"own_good.json", "own_good.unit.json", "own_good.error.json"} <= {*found}
    assert "own_absent.json" not in found
    nodes = check(found["own_good.json"])
    assert [*nodes] == ["own:good"]
    for word in ("unit", "error"):
        check_data(found[f"own_good.{word}.json"], nodes)


@pytest.mark.drawn
@pytest.mark.heavy
def test_workers(project: Project) -> None:
    project.packages(good="float32", other="float32").pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "--ane-model-explorer=graphs"
    )
    found = files(project.path / "graphs")
    assert {"own_good.json", "own_other.json", "own_good.unit.json"} <= {*found}


def test_a_folder_that_cannot_be_made_is_a_usage_error(project: Project) -> None:
    (project.path / "file").write_text("")
    refused(
        project.packages(good="none").gate("--ane-model-explorer=file/graphs"),
        "--ane-model-explorer=*file cannot be written (*",
    )
