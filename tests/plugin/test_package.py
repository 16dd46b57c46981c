"""`--ane-package`: packages without a manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes
from tests.plugin.conftest import Project
from tests.plugin.projects import save


def of(project: Project, package: str, *options: str) -> pytest.RunResult:
    path = project.workshop.packages.get(package, project.path / package)
    return project.run(f"--ane-package={path}", "-m", "gate", *options)


def test_a_good_package_passes_three_gates(project: Project) -> None:
    result = of(project, "good")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "ane: good.mlpackage · shards 1 of 1 · *",
            "passed   package:good  compression * kB*",
            "passed   package:good  fidelity    finite 100.0% (no reference) *",
            "passed   package:good  placement   forecast: 1 of 1 op for the ANE",
        ]
    )


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


def test_nan_in_the_output_fails(project: Project) -> None:
    result = of(project, "nan")
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "package:nan: fidelity failed",
            "  - * probes give NaN or infinite values: *",
            "FAILED   package:nan  fidelity    * NaN or infinite values:*",
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
    with converter_notes():
        save(project.path / "frozen.mlpackage", _frozen)
    result = of(project, "frozen.mlpackage", "-k", "fidelity")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["  - Output y is the same in 2 probes, whatever the input; look for *"]
    )


def test_a_table_beside_other_outputs_warns(project: Project) -> None:
    with converter_notes():
        save(project.path / "table.mlpackage", _with_table)
    result = of(project, "table.mlpackage", "-k", "fidelity")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["warned   package:table  fidelity    1 output is the same whatever the input:"]
    )


def test_an_op_that_the_ane_does_not_have_fails_placement(project: Project) -> None:
    result = of(project, "ineligible")
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "package:ineligible: placement failed",
            "  - tan `tangent` is ineligible (R*",
            "*source *",
            "FAILED   package:ineligible  placement   forecast: 1 of * ops is ineligible*",
        ]
    )


def test_float32_fails_placement(project: Project) -> None:
    result = of(project, "float32")
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["package:float32: placement failed", "  - *ineligible (R*fp32*"])


def test_a_missing_package_is_one_line(project: Project) -> None:
    result = of(project, "absent.mlpackage")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --ane-package: *absent.mlpackage does not exist; check the path."]
    )


def test_a_file_is_refused_before_any_gate(project: Project) -> None:
    (project.path / "notes.mlpackage").write_text("hello")
    result = of(project, "notes.mlpackage")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-package: *notes.mlpackage is a file; *"])


def test_something_else_than_a_package_fails_with_a_sentence(project: Project) -> None:
    (project.path / "notes").mkdir()
    result = of(project, "notes")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Manifest.json: missing; the package is incomplete."])


def test_an_empty_path_is_not_taken_for_no_option(project: Project) -> None:
    result = project.run("--ane-package=", "-m", "gate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-package is empty; give a value or leave it out."])


def test_shards_and_package_exclude_each_other(project: Project) -> None:
    result = of(project, "good", "--ane-shards=all")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: Give either --ane-shards or --ane-package, not both."])
