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
""", coarse=network("iOS18").package_path)  # fmt: skip


def test_a_failure_names_the_weight_and_shows_every_error(coarse: Project) -> None:
    result = coarse.gate("-k", "compression", "--junitxml=out.xml")
    found = properties(coarse.path / "out.xml")["test_compression[own:coarse]"]
    assert 30 < float(found["ane.min_snr_db"]) < 50
    assert found["ane.min_snr_weight"] in ("conv", "product")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "own:coarse: compression failed",
            "  - product * has 3,072 elements, over 2,000 *",
            "weight *SSE  SNR dB*",
            "conv *",
            "product *",
        ]
    )
