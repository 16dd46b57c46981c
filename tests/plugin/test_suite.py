"""Where the gates come from: the wheel, a checkout, or the project's own copy."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.project import suite
from tests.plugin.conftest import Project

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as it lies in site-packages."""
    from hatchling.build import build_wheel

    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


@pytest.fixture
def installed(project: Project, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose environment lies inside it, as most do, with the wheel installed."""
    environment = project.path / ".venv"
    shutil.copytree(wheel, environment / "lib/site-packages")
    (environment / "pyvenv.cfg").touch()
    monkeypatch.setenv("PYTHONPATH", str(environment / "lib/site-packages"))
    return project.packages(good="none")


def test_the_wheel_carries_the_gates(wheel: Path) -> None:
    shipped = {path.name for path in (wheel / "pytest_ane/suite").glob("*.py")}
    assert shipped == {path.name for path in (ROOT / "gates").glob("*.py")}
    assert "test_fidelity.py" in shipped
    assert (wheel / "pytest_ane/py.typed").is_file()


@pytest.mark.slow
def test_gates_run_from_an_environment_inside_the_project(installed: Project) -> None:
    installed.pytester.makepyfile("import pytest_ane\ndef test_own(): print(pytest_ane.__file__)\n")
    result = installed.pytester.runpytest_subprocess("--ane-shards=all", "--ane-cache=c", "-rP")
    result.assert_outcomes(passed=4, deselected=1)
    result.stdout.fnmatch_lines(["gates/test_placement.py .*"])
    result.stdout.fnmatch_lines(["*/.venv/lib/site-packages/pytest_ane/__init__.py"])


def test_own_gates_are_used_in_place_of_the_shipped(project: Project) -> None:
    assert main(["init", str(project.path)]) == 0
    own = project.path / "gates/test_placement.py"
    own.write_text(
        own.read_text().replace("ane_gate(", "assert ane_shard.id == 'other'; ane_gate(")
    )
    result = project.packages(good="none").gate()
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*AssertionError: assert 'good' == 'other'"])


@pytest.mark.parametrize("arguments", [[], ["."], ["gates"], ["gates/test_placement.py", "gates"]])
def test_own_gates_run_once_however_they_are_named(project: Project, arguments: list[str]) -> None:
    assert main(["init", str(project.path)]) == 0
    project.pytester.mkdir("tests")
    project.packages(good="none").gate(*arguments).assert_outcomes(passed=3, deselected=1)


def test_one_own_gate_can_be_named(project: Project) -> None:
    assert main(["init", str(project.path)]) == 0
    project.packages(good="none").gate("gates/test_placement.py").assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", [[], ["."]])
def test_shipped_gates_join_a_run_of_everything(project: Project, arguments: list[str]) -> None:
    (project.path / "tests").mkdir()
    (project.path / "tests/test_own.py").write_text("def test_own(): pass\n")
    result = project.packages(good="none").run("--ane-shards=all", *arguments)
    result.assert_outcomes(passed=4, deselected=1)


def test_one_shipped_gate_can_be_named(project: Project) -> None:
    named = str(suite.shipped() / "test_placement.py")
    project.packages(good="none").gate(named, f"--rootdir={project.path}").assert_outcomes(passed=1)


def test_the_projects_naming_rules_hide_no_shipped_gate(project: Project) -> None:
    project.pytester.makeini(
        "[pytest]\npython_files = check_*.py\npython_functions = check_*\nnorecursedirs = gates\n"
    )
    project.packages(good="none").gate().assert_outcomes(passed=3, deselected=1)


def test_a_conftest_of_the_project_reaches_shipped_gates(project: Project) -> None:
    project.pytester.makeconftest(
        "import pytest\n"
        "@pytest.fixture\n"
        "def ane_evidence(): pytest.fail('replaced')\n"
        "def pytest_report_header(): return 'of the project'\n"
    )
    result = project.packages(good="none").gate("-k", "compression")
    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(["of the project", "*replaced*"])


def test_the_shipped_suite_is_found_beside_or_inside_the_package() -> None:
    assert suite.shipped() == ROOT / "gates"
    assert os.access(suite.shipped() / "test_fidelity.py", os.R_OK)
