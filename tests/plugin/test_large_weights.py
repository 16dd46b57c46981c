"""Policy `int8-per-tensor-over`, and the errors of weights, through whole runs."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from pytest_ane.make.compress import compress
from pytest_ane.manifest import Compression, Linear
from tests.make.test_optimize import TENSOR, linear, network
from tests.plugin.conftest import Project
from tests.plugin.test_junit import properties

COARSE: Linear = TypeAdapter[Linear](Compression).validate_python(linear(**TENSOR))


@pytest.fixture
def coarse(project: Project) -> Project:
    """Own packages of one scale a weight, held against their uncompressed form."""
    compress(network("iOS18"), COARSE, project.path / "coarse.mlpackage", "m")
    return project.packages("""
[models.own.policy.compression]
int8-per-tensor-over = "2k"
int8-per-tensor-action = "warn"
""", coarse=network("iOS18").package_path)  # fmt: skip


def test_a_warning_fails_nothing_and_is_seen(coarse: Project) -> None:
    result = coarse.gate("-k", "compression", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(["warned   own:coarse  compression 1 of * weights has one scale *"])
    found = properties(coarse.path / "out.xml")["test_compression[own:coarse]"]
    assert (found["ane.status"], found["ane.warnings"]) == ("passed", "1")
    assert 30 < float(found["ane.min_snr_db"]) < 50
    assert found["ane.min_snr_weight"] in ("conv", "product")


def test_the_action_of_the_policy_fails_it(coarse: Project) -> None:
    coarse.replace('"warn"', '"fail"')
    result = coarse.gate("-k", "compression")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["own:coarse: compression failed", "weight *SSE  SNR dB*"])
