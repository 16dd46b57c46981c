"""Where the gates come from: the wheel, a checkout, or the project's own copy."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from pytest_ane.cli import main
from tests.plugin.conftest import Project, refused

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


@pytest.mark.parametrize("arguments", [[], ["."]])
def test_shipped_gates_join_a_run_of_everything(project: Project, arguments: list[str]) -> None:
    (project.path / "tests").mkdir()
    (project.path / "tests/test_own.py").write_text("def test_own(): pass\n")
    result = project.packages(good="none").run("--ane-shards=all", *arguments)
    result.assert_outcomes(passed=4, deselected=1)


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


# `--co`: lists the gates at once; of sources it reads headers, and of packages nothing.

IDS = """\
gates/test_compression.py::test_compression[mini:L00]
gates/test_compression.py::test_compression[mini:L01]
gates/test_compression.py::test_compression[mini:head.0]
gates/test_compression.py::test_compression[mini:head.1]
gates/test_fidelity.py::test_fidelity[mini:L00]
gates/test_fidelity.py::test_fidelity[mini:L01]
gates/test_fidelity.py::test_fidelity[mini:head.0]
gates/test_fidelity.py::test_fidelity[mini:head.1]
gates/test_placement.py::test_placement[mini:L00]
gates/test_placement.py::test_placement[mini:L01]
gates/test_placement.py::test_placement[mini:head.0]
gates/test_placement.py::test_placement[mini:head.1]
gates/test_behaviour.py::test_behaviour[mini]

13 tests collected in *
"""


def test_ids_are_short_and_no_weights_are_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pytest_ane.models.sources._gguf.GGUFSource._dequantize", read)
    project.llama()
    result = project.gate("--co", "-q", "--ane-cache=cache")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [line.replace("[", "[[]") for line in IDS.splitlines()], consecutive=True
    )
    assert not (project.path / "cache").exists()


def test_behaviour_is_asked_of_complete_chains_only(project: Project) -> None:
    result = project.llama().gate("--co", "-q", shards="L0*")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*test_behaviour*")
    result.stdout.fnmatch_lines(["6/7 tests collected (1 deselected) in *"])


# `--ane-shards`: which gates run.


def listed(project: Project, selection: str) -> list[str]:
    """Ids of shards whose placement would be asked; the source is not opened."""
    result = project.llama().gate("--co", "-q", shards=selection)
    assert result.ret == 0
    lines = [line for line in result.outlines if "test_placement[" in line]
    return [line.partition("[")[2].rstrip("]") for line in lines]


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("selection", "shards"),
    [
        ("L01", ["mini:L01"]),
        ("L00-L01", ["mini:L00", "mini:L01"]),
        ("head*", ["mini:head.0", "mini:head.1"]),
        ("head*,L00", ["mini:L00", "mini:head.0", "mini:head.1"]),
        ("mini:L01", ["mini:L01"]),
        ("mini:head.0-head.1", ["mini:head.0", "mini:head.1"]),
        ("all", ["mini:L00", "mini:L01", "mini:head.0", "mini:head.1"]),
        ("sample:2", ["mini:L00", "mini:head.1"]),
        ("L01,L01", ["mini:L01"]),
    ],
)
def test_a_selection_names_shards(project: Project, selection: str, shards: list[str]) -> None:
    assert listed(project, selection) == shards


@pytest.mark.parametrize("selection", ["L1", "tiny:L00", "L01-L00", "sample:none", "", " , "])
def test_a_wrong_selection_is_one_line(project: Project, selection: str) -> None:
    """Their sentences are the business of `tests/manifest/test_selection.py`."""
    refused(project.llama().gate(shards=selection), "*[.']")


def test_without_the_option_only_the_projects_own_tests_run(project: Project) -> None:
    project.llama().pytester.makepyfile("def test_own(): pass")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("ane: *")


def test_own_gates_without_the_option_are_deselected_not_skipped(project: Project) -> None:
    from pytest_ane.cli import main

    assert main(["init", str(project.path)]) == 0
    result = project.pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(deselected=9)
