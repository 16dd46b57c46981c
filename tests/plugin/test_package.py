"""`--ane-package`: packages without a manifest."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project, refused


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
