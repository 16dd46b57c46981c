"""JUnit XML carries each gate's facts as properties."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.plugin.conftest import Project


def properties(path: Path) -> dict[str, dict[str, str]]:
    """`ane.*` properties by test name."""
    return {
        case.get("name", ""): {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        for case in ElementTree.parse(path).iter("testcase")
    }


def test_facts_are_properties(project: Project) -> None:
    project.packages(good="float32").gate("--junitxml=out.xml").assert_outcomes(
        passed=3, deselected=1
    )
    found = properties(project.path / "out.xml")
    fidelity = found["test_fidelity[own:good]"]
    assert fidelity["ane.gate"] == "fidelity"
    assert fidelity["ane.subject"] == "own:good"
    assert fidelity["ane.status"] == "passed"
    assert float(fidelity["ane.cosine.min"]) == pytest.approx(1, abs=1e-4)
    compression = found["test_compression[own:good]"]
    size = sum(
        f.stat().st_size for f in project.workshop.packages["good"].rglob("*") if f.is_file()
    )
    assert int(compression["ane.size_bytes"]) == size
    assert found["test_placement[own:good]"]["ane.outcome"] == "eligible"


def test_an_error_before_the_verdict_has_its_subject_too(project: Project) -> None:
    project.packages(absent="none").gate("--junitxml=out.xml")
    found = properties(project.path / "out.xml")["test_placement[own:absent]"]
    assert found["ane.gate"] == "placement"
    assert found["ane.subject"] == "own:absent"
    assert found["ane.status"] == "error"
    assert "absent.mlpackage" in found["ane.summary"]


def test_every_gate_names_the_bytes_it_judged(project: Project) -> None:
    project.llama().gate("--junitxml=out.xml")
    found = properties(project.path / "out.xml")
    shards = {name: facts for name, facts in found.items() if "behaviour" not in name}
    assert len(shards) == 12
    for name, facts in shards.items():
        assert re.fullmatch("[0-9a-f]{64}", facts["ane.provenance.artifact"]), name
    digests = {facts["ane.subject"]: facts["ane.provenance.artifact"] for facts in shards.values()}
    assert len(set(digests.values())) == 4
    behaviour = found["test_behaviour[mini]"]
    for subject, digest in digests.items():
        assert behaviour[f"ane.provenance.{subject.removeprefix('mini:')}"] == digest
