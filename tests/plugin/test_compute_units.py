"""`--ane-compute-units` and its ini twin: where Core ML may run a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ane.mac.testing import Mac, Replayer, Script
from tests.plugin.conftest import Project, refused

ONE = ("-k", "fidelity")
CORE_ML = (*ONE, "--ane-backend=coreml")


@pytest.fixture
def good(project: Project) -> Iterator[Project]:
    with Replayer(Script(Mac(compiler=""))):
        yield project.packages(good="none")


def test_the_option_reaches_core_ml(good: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import coremltools

    asked = []
    load = coremltools.models.CompiledMLModel

    def noted(path: str, units: coremltools.ComputeUnit, function: str | None) -> object:
        asked.append(units.name)
        return load(path, units, function)

    monkeypatch.setattr(coremltools.models, "CompiledMLModel", noted)
    good.gate(*CORE_ML).stdout.fnmatch_lines(["ane: * · CPU_AND_NE · *"])
    good.gate(*CORE_ML, "--ane-compute-units=CPU_ONLY").stdout.fnmatch_lines(
        ["ane: * · CPU_ONLY *"]
    )
    assert list(dict.fromkeys(asked)) == ["CPU_AND_NE", "CPU_ONLY"]


def test_beside_cpu_it_is_a_usage_error(good: Project) -> None:
    refused(
        good.gate(*ONE, "--ane-backend=cpu", "--ane-compute-units=ALL"),
        "--ane-compute-units=ALL is for --ane-backend=coreml; leave it out with cpu.",
    )


def test_what_holds_for_the_mac_is_passed_over_elsewhere(good: Project) -> None:
    good.pytester.makeini("[pytest]\nane_compute_units = ALL\n")
    found = good.gate(*ONE, "--ane-backend=cpu")
    found.stdout.no_fnmatch_line("*ALL*")
    found.assert_outcomes(passed=1, deselected=3)
