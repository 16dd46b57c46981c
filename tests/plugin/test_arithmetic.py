"""`arithmetic` in the manifest and `--ane-arithmetic`: each that is named has tests of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes
from tests.plugin.conftest import Project, Workshop
from tests.plugin.projects import LLAMA, save

SCALE = 2.0**-8
WEIGHT = 18_000.0
"""Times a probe's values: beyond 32,768 for the largest of them, and never beyond fp16's range."""


def _late(x: Any) -> Any:
    """Sums beyond the accumulator's limit, which are scaled down afterwards."""
    from coremltools.converters.mil import Builder as mb

    return mb.mul(
        x=mb.relu(x=mb.conv(x=x, weight=_diagonal(WEIGHT))), y=np.float16(SCALE), name="y"
    )


def _early(x: Any) -> Any:
    """The same function with the scale in the weight."""
    from coremltools.converters.mil import Builder as mb

    return mb.relu(x=mb.conv(x=x, weight=_diagonal(WEIGHT * SCALE)), name="y")


def _first(x: Any) -> Any:
    """The same function with the scale on the input."""
    from coremltools.converters.mil import Builder as mb

    scaled = mb.mul(x=x, y=np.float16(SCALE))
    return mb.relu(x=mb.conv(x=scaled, weight=_diagonal(WEIGHT)), name="y")


def _diagonal(value: float) -> Any:
    return np.eye(8, dtype=np.float16).reshape(8, 8, 1, 1) * np.float16(value)


@pytest.fixture(scope="module")
def made(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("arithmetic")
    programs = {"late": _late, "early": _early, "first": _first}
    with converter_notes():
        return {name: save(folder / f"{name}.mlpackage", build) for name, build in programs.items()}


@pytest.fixture
def own(project: Project, made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Project:
    """Two shards, held against one that scales its input first; nothing is wrapped."""
    monkeypatch.setenv("COLUMNS", "400")
    tables = (
        f'[models.own.shard.{name}]\nartifact = "{made[name]}"\nreference = "{made["first"]}"\n'
        for name in ("late", "early")
    )
    return project.manifest("\n".join(tables))


def fidelity(own: Project, *options: str) -> pytest.RunResult:
    return own.gate("-k", "fidelity", *options)


@pytest.mark.drawn
@pytest.mark.parametrize(("value", "typed"), [("ane", 0), ("typed,ane", 2)])
def test_the_one_that_overflows_is_red_in_the_ane_s_arithmetic(
    own: Project, value: str, typed: int
) -> None:
    result = fidelity(own, f"--ane-arithmetic={value}", "-rA")
    result.assert_outcomes(passed=1 + typed, failed=1, deselected=7)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED   own:late *simulated: the ANE's arithmetic: it*",
            "passed   own:early *simulated: cosine 1.0000 (needs 0.97)",
            "FAILED gates/test_fidelity.py::test_fidelity[[]own:late-ane[]]*",
            "PASSED gates/test_fidelity.py::test_fidelity[[]own:early-ane[]]*",
        ]
    )


def test_one_of_both_is_run_by_its_id(own: Project) -> None:
    name = "gates/test_fidelity.py::test_fidelity[own:late-ane]"
    own.run(name, "--ane-arithmetic=typed,ane").assert_outcomes(failed=1)
    own.gate("-k", "ane]", "--ane-arithmetic=typed,ane").assert_outcomes(
        passed=1, failed=1, deselected=9
    )


def test_a_canary_waits_for_both(own: Project) -> None:
    own.head('[models.own]\ncanary = ["late"]\n')
    result = fidelity(own, "--ane-arithmetic=typed,ane")
    result.stdout.fnmatch_lines(["*not run: canary late failed fidelity*"])
    fidelity(own, "--ane-arithmetic=typed").assert_outcomes(passed=2, deselected=5)


def test_the_manifest_names_it_and_the_option_overrides_it(own: Project) -> None:
    text = (own.path / "shards.toml").read_text()
    own.manifest(f'[models.own]\narithmetic = ["typed", "ane"]\n{text}')
    fidelity(own).assert_outcomes(passed=3, failed=1, deselected=7)
    fidelity(own, "--ane-arithmetic=typed").assert_outcomes(passed=2, deselected=5)
    own.pytester.makeini("[pytest]\nane_arithmetic = typed\n")
    fidelity(own).assert_outcomes(passed=2, deselected=5)


@pytest.mark.slow
def test_a_device_computes_in_its_own(own: Project) -> None:
    from pytest_ane.mac.testing import Replayer, Script

    with Replayer(Script()):
        result = fidelity(own, "--ane-arithmetic=ane", "--ane-backend=coreml")
    result.assert_outcomes(passed=2, deselected=7)
    result.stdout.no_fnmatch_line("*simulated*")


@pytest.mark.slow
def test_a_whole_stack_in_both(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    project.manifest(LLAMA.format(source=project.workshop.llama))
    result = project.gate("-k", "behaviour", "--ane-arithmetic=typed,ane", "-v")
    result.assert_outcomes(passed=2, deselected=20)
    result.stdout.fnmatch_lines(["passed   mini  *simulated: *costs: KL to*"])


def test_hazards_are_asked_in_the_ane_s_arithmetic_alone(own: Project) -> None:
    own.gate("-k", "hazards").assert_outcomes(deselected=7)
    result = own.gate("-k", "hazards", "--ane-arithmetic=typed,ane", "-rA")
    result.assert_outcomes(passed=1, failed=1, deselected=9)
    result.stdout.fnmatch_lines_random(
        [
            "*outputs overflowed, as the accumulator met 32,768 (recorded: *power of two*",
            "FAILED   own:late *hazards *simulated: *largest |sum| inf > 32768*",
            "passed   own:early *hazards *simulated: largest |sum| *(at most 32768)",
        ]
    )
