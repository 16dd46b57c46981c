"""Own gates that measure without `ane_evidence`: they work, and policy.require holds them too."""

from __future__ import annotations

import pytest

from pytest_ane.mac.testing import Replayer, Script
from tests.plugin.conftest import Project

PLACEMENT = """
import pytest
from pytest_ane.gates.placement import PLACEMENT, forecast
pytestmark = pytest.mark.gate
def test_placement(ane_shard, ane_artifact, ane_program, ane_gate):
    found = forecast(ane_program, size_bytes=ane_artifact.size)
    ane_gate(PLACEMENT.judge(found, ane_shard.policy.placement, ane_shard))
"""
COMPRESSION = """
import pytest
from pytest_ane.gates.compression import COMPRESSION, measure
pytestmark = pytest.mark.gate
def test_compression(ane_shard, ane_artifact, ane_program, ane_gate):
    found = measure(ane_shard, ane_artifact, ane_program)
    ane_gate(COMPRESSION.judge(found, ane_shard.policy.compression, ane_shard))
"""
FIDELITY = """
import pytest
from pytest_ane.gates.fidelity import FIDELITY, measure
pytestmark = pytest.mark.gate
def test_fidelity(ane_shard, ane_artifact, ane_reference, ane_backend, ane_gate):
    found = measure(
        ane_backend.load(ane_artifact.path),
        ane_reference,
        compared=ane_shard.reference != "none",
        provenance=ane_backend.provenance() | {"artifact": ane_artifact.digest},
    )
    ane_gate(FIDELITY.judge(found, ane_shard.policy.fidelity, ane_shard))
"""
VERDICT = """
import pytest
from pytest_ane.gates.verdict import Figure, Finding, Verdict
pytestmark = pytest.mark.gate
def test_size(ane_shard, ane_artifact, ane_gate):
    size = Figure("size", ane_artifact.size, "bytes", limit=2, good="below")
    ane_gate(Verdict("size", ane_shard.qualified, figures=(size,)))
"""
ASSERTS = """
import pytest
pytestmark = pytest.mark.gate
def test_long_own_name(ane_shard):
    assert ane_shard.id == "good", "only good is right"
"""
REQUIRED = "[models.own.policy]\nplacement.require = 'plan'\nfidelity.require = 'device'\n"


@pytest.fixture
def own(project: Project) -> Project:
    """A project with its own gates."""
    project.own_gate(PLACEMENT, "test_placement.py")
    project.own_gate(COMPRESSION, "test_compression.py")
    return project.own_gate(FIDELITY)


def test_they_work(own: Project) -> None:
    own.packages(good="float32").gate("gates").assert_outcomes(passed=3)


def test_a_policy_that_requires_a_device_is_not_passed_without(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    result = own.packages(REQUIRED, good="float32").gate("gates", "--ane-backend=cpu")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*policy.fidelity.require asks for a device, and this gate measured on the backend "
            "cpu; let it judge what ane_evidence.of('fidelity') gives",
            "*policy.placement.require asks for Core ML's plan, and this gate measured on the "
            "backend cpu; let it judge what ane_evidence.of('placement') gives",
        ]
    )


@pytest.mark.usefixtures("genuine")
def test_on_a_mac_a_forecast_is_no_plan(own: Project) -> None:
    own.packages(REQUIRED, good="float32")
    with Replayer(Script()):
        result = own.gate("gates", "--ane-backend=coreml")
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(["*asks for Core ML's plan, and this gate judged a forecast;*"])
        result = own.gate("gates", "--ane-backend=coreml", "--ane-compute-units=CPU_ONLY")
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(["*units=CPU_ONLY is none that the policy takes*"])


def test_a_canary_is_held_likewise(own: Project) -> None:
    own.packages(good="float32", other="none").head(f"[models.own]\ncanary = ['good']\n{REQUIRED}")
    result = own.gate("gates", "-k", "other and fidelity", "--ane-backend=cpu")
    result.assert_outcomes(errors=1, deselected=5)
    result.stdout.fnmatch_lines(["*not run: canary good left placement unproven*"])


def test_a_figure_beyond_its_limit_fails_without_a_finding(project: Project) -> None:
    (project.path / "test_size.py").write_text(VERDICT)
    result = project.packages(good="none").gate("test_size.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["own:good: size failed", "  - * > 2 bytes", "1 gate: 1 failed"])


def test_those_that_pass_by_assert_are_rows_and_count(project: Project) -> None:
    (project.path / "test_asserts.py").write_text(ASSERTS)
    result = project.packages(good="none", other="none").gate("test_asserts.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAILED   own:other  long_own_name *only good is right*",
            "passed   own:good   long_own_name",
            "2 gates: 1 failed, 1 passed *",
        ]
    )
