"""Own packages with and without `uncompressed`, and what the compression gate says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from pytest_ane.make.compress import compress
from pytest_ane.manifest import Compression, Linear
from tests.gates.fidelity import blocks
from tests.make.test_optimize import TENSOR, linear, network, saved_network
from tests.plugin.conftest import Project
from tests.plugin.test_junit import properties

MANIFEST = """\
[models.own.shard.a]
artifact = "small/model.mlpackage"
reference = "{reference}"
{more}

[models.own.shard.a.compression]
method = "palettize"
nbits = 4
group_size = 16
weight_threshold = 0
"""
NAMED = 'uncompressed = "plain/model.mlpackage"'


@pytest.fixture
def small(project: Project) -> Path:
    """`small/model.mlpackage` in 4 bits, of `plain/model.mlpackage`."""
    bits = dict.fromkeys(blocks.NAMES, 4)
    return blocks.palettized(blocks.plain(project.path), project.path / "small", bits)


@pytest.mark.parametrize(("reference", "more"), [("none", NAMED), ("plain/model.mlpackage", "")])
def test_the_error_of_every_weight_is_judged(
    project: Project, small: Path, reference: str, more: str
) -> None:
    project.manifest(MANIFEST.format(reference=reference, more=more))
    project.gate("-k", "compression", "--junitxml=out.xml").assert_outcomes(passed=1, deselected=3)
    facts = properties(project.path / "out.xml")["test_compression[own:a]"]
    assert float(facts["ane.max_weight_error"]) == pytest.approx(1)
    assert float(facts["ane.max_weight_row_error"]) <= 1
    assert facts["ane.weights_missing"] == "0"


def test_a_spoilt_table_is_red(project: Project, small: Path) -> None:
    weights = small / "Data/com.apple.CoreML/weights/weight.bin"
    content = bytearray(weights.read_bytes())
    content[-32:] = bytes(32)  # The table of the last 16 rows of the last weight.
    weights.write_bytes(content)
    project.manifest(MANIFEST.format(reference="none", more=NAMED))
    project.gate("-k", "compression").assert_outcomes(failed=1, deselected=3)


def test_without_an_uncompressed_package_a_note_says_what_to_add(
    project: Project, small: Path
) -> None:
    project.manifest(MANIFEST.format(reference="none", more=""))
    result = project.gate("-k", "compression", "-rA")
    result.assert_outcomes(passed=1, deselected=3)
    assert 'uncompressed = "x-fp16.mlpackage"' in result.stdout.str()


def test_a_compressed_package_is_refused_as_uncompressed(project: Project, small: Path) -> None:
    named = NAMED.replace("plain", "small")
    project.manifest(MANIFEST.format(reference="none", more=named))
    result = project.gate("-k", "compression")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "its first is stored as" in " ".join(result.stdout.str().split())


# Policy `int8-per-tensor-over`, and the errors of weights, through whole runs.

COARSE: Linear = TypeAdapter[Linear](Compression).validate_python(linear(**TENSOR))


@pytest.fixture
def coarse(project: Project) -> Project:
    """Own packages of one scale a weight, held against their uncompressed form."""
    compress(saved_network("iOS18"), COARSE, project.path / "coarse.mlpackage", "m")
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
    result.stdout.fnmatch_lines(["own:coarse: compression failed", "weight *SSE  SNR dB*"])
