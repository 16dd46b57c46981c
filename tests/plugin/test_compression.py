"""Own packages with and without `uncompressed`, and what the compression gate says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gates.fidelity import blocks
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


# Policy `int8-per-tensor-over`, and the errors of weights, through whole runs.
