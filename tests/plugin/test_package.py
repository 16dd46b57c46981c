"""`--ane-package`: packages without a manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes
from tests.plugin.conftest import Project, refused
from tests.plugin.projects import save


def of(project: Project, package: str, *options: str) -> pytest.RunResult:
    path = project.workshop.packages.get(package, project.path / package)
    return project.run(f"--ane-package={path}", "-m", "gate", *options)


def test_a_package_may_be_named_relative_to_where_pytest_is_called(project: Project) -> None:
    project.copy("good")
    project.run("--ane-package=good.mlpackage", "-m", "gate").assert_outcomes(
        passed=3, deselected=1
    )


def test_several_packages_are_all_gated(project: Project) -> None:
    paths = [project.workshop.packages[name] for name in ("good", "nan", "good")]
    result = project.run(*(f"--ane-package={path}" for path in paths), "-m", "gate")
    result.assert_outcomes(passed=5, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "ane: good.mlpackage, nan.mlpackage · shards 2 of 2 · *",
            "FAILED   package:nan   fidelity *",
            "passed   package:good  compression *",
        ]
    )


def _frozen(x: Any) -> Any:
    """Positions alone are left: rows differ, and no input changes them."""
    from coremltools.converters.mil import Builder as mb

    table = np.arange(32, dtype=np.float16).reshape(1, 8, 1, 4)
    return mb.add(x=mb.mul(x=x, y=np.float16(0)), y=table, name="y")


def _with_table(x: Any) -> Any:
    from coremltools.converters.mil import Builder as mb

    table = np.arange(8, dtype=np.float16)
    return mb.mul(x=x, y=np.float16(2), name="y"), mb.add(x=table, y=table, name="table")


def test_an_output_that_no_input_changes_fails(project: Project) -> None:
    """Where another output beside it changes, it is a warning."""
    with converter_notes():
        save(project.path / "frozen.mlpackage", _frozen)
        save(project.path / "table.mlpackage", _with_table)
    of(project, "frozen.mlpackage", "-k", "fidelity").assert_outcomes(failed=1, deselected=3)
    result = of(project, "table.mlpackage", "-k", "fidelity")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(["warned   package:table  fidelity *"])


@pytest.mark.parametrize(
    ("package", "red"),
    [("good", ""), ("nan", "fidelity"), ("ineligible", "placement"), ("float32", "placement")],
)
def test_three_gates_of_a_package(project: Project, package: str, red: str) -> None:
    result = of(project, package)
    result.assert_outcomes(passed=3 - bool(red), failed=int(bool(red)), deselected=1)
    result.stdout.fnmatch_lines([f"ane: {package}.mlpackage · shards 1 of 1 · *"])
    if red:
        result.stdout.fnmatch_lines([f"package:{package}: {red} failed", f"FAILED * {red} *"])


def test_a_missing_package_is_one_line(project: Project) -> None:
    refused(
        of(project, "absent.mlpackage"),
        "--ane-package: *absent.mlpackage does not exist; check the path.",
    )


def test_a_file_is_refused_before_any_gate(project: Project) -> None:
    (project.path / "notes.mlpackage").write_text("hello")
    refused(of(project, "notes.mlpackage"), "--ane-package: *notes.mlpackage is a file; *")


def test_something_else_than_a_package_fails_with_a_sentence(project: Project) -> None:
    (project.path / "notes").mkdir()
    result = of(project, "notes")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Manifest.json: missing; the package is incomplete."])


def test_shards_and_package_exclude_each_other(project: Project) -> None:
    refused(
        of(project, "good", "--ane-shards=all"),
        "Give either --ane-shards or --ane-package, not both.",
    )
