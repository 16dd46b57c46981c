"""Pipelines: gated whole, and each ML Program in them under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.detectors import detector
from tests.mlprogram.compiled_pipelines import save_compiled
from tests.plugin.conftest import Project

pytestmark = pytest.mark.slow

MANIFEST = """\
[models.mine.shard.yolo]
artifact = "yolo.{suffix}"
reference = "{reference}"

[models.mine.shard.yolo.policy.fidelity]
min-cosine = 0.95
"""


def run(
    project: Project, *, suffix: str = "mlpackage", reference: str = "plain.mlpackage"
) -> pytest.RunResult:
    project.manifest(MANIFEST.format(suffix=suffix, reference=reference))
    return project.gate("-v")


def lines(result: pytest.RunResult) -> list[str]:
    """The summary's rows: status, subject and gate."""
    rows = [line.split()[:3] for line in result.stdout.lines]
    return sorted(" ".join(row) for row in rows if len(row) == 3 and row[1].startswith("mine:"))


@pytest.fixture
def plain(project: Project) -> Path:
    return detector(project.path / "plain.mlpackage", names=True)


def test_a_right_pipeline_is_green_whole_and_in_parts(project: Project, plain: Path) -> None:
    detector(project.path / "yolo.mlpackage", names=True, spoilt=1.01)
    result = run(project)
    assert lines(result) == [
        "passed mine:yolo fidelity",
        "passed mine:yolo[decoder] compression",
        "passed mine:yolo[decoder] fidelity",
        "warned mine:yolo[decoder] placement",
    ]
    result.assert_outcomes(passed=4, deselected=1)


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"spoilt": 0.05}, ["FAILED mine:yolo fidelity", "FAILED mine:yolo[decoder] fidelity"]),
        ({"iou": 0.5}, ["FAILED mine:yolo fidelity"]),
    ],
)
def test_a_wrong_one_is_red(
    project: Project, plain: Path, changed: dict[str, float], failed: list[str]
) -> None:
    detector(project.path / "yolo.mlpackage", names=True, **changed)
    result = run(project)
    assert [line for line in lines(result) if "FAILED" in line] == failed
    assert "internal error" not in result.stdout.str()


def test_of_a_compiled_detector_the_program_is_gated(project: Project, plain: Path) -> None:
    """The whole is red by one sentence that says what to do."""
    near = detector(project.path / "near.mlpackage", names=True, spoilt=1.01)
    save_compiled(near, project.path / "yolo.mlmodelc")
    result = run(project, suffix="mlmodelc")
    assert [line for line in lines(result) if "passed" in line] == [
        "passed mine:yolo[decoder] compression",
        "passed mine:yolo[decoder] fidelity",
    ]
    result.stdout.fnmatch_lines(["*name the .mlpackage that it was compiled from*"])
    assert "Traceback" not in result.stdout.str()


def test_a_package_alone(project: Project, plain: Path) -> None:
    project.run(f"--ane-package={plain}", "-m", "gate").assert_outcomes(passed=4, deselected=1)
