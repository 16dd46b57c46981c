"""`--ane-blame` and its ini twin: which fidelity verdicts are explained."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.tools.blame import CAUSE
from tests.plugin.conftest import Project
from tests.records.runs import verdicts

TWO_BITS = """
[models.mini.compression]
method = "palettize"
nbits = 8
granularity = "per_tensor"
weight_threshold = 0
overrides = [{ weights = "v_proj*", nbits = 2 }]
"""


def spoilt(project: Project, *options: str) -> pytest.RunResult:
    """One block of a tiny Llama, whose values have two bits."""
    return project.llama(TWO_BITS).gate("-k", "fidelity", *options, shards="L00")


SECTION = [
    "mini:L00: fidelity failed",
    "*-- Captured ane blame call --*",
    "compression: exact weights leave less than half of the error",
    "relative error of the contribution on the worst 4 of * probes *",
    "* as it is, * with every weight exact, * in float32 as well; run by the CPU executor",
    "weight *",
    "v_proj_weight_to_fp16 *",
    'for compression.overrides in shards.toml: { weights = "v_proj_weight_to_fp16", *',
    "op *",
    "* conv *takes v_proj_weight_to_fp16",
]


@pytest.mark.slow
def test_a_failed_shard_is_explained(project: Project) -> None:
    result = spoilt(project)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(SECTION)


@pytest.mark.drawn
@pytest.mark.slow
def test_the_report_has_the_cause_as_structure(project: Project) -> None:
    spoilt(project, "--ane-report=all.jsonl")
    found = verdicts(project.path / "all.jsonl")
    (verdict,) = (v for v in found if v["gate"] == "fidelity")
    found = verdict["findings"][-1]
    assert (found["severity"], found["kind"]) == ("note", CAUSE)
    assert found["where"]["weight"] == "v_proj_weight_to_fp16"
    assert "weights = " in found["remedy"]
    tables = {table["name"]: table["rows"] for table in verdict["tables"]}
    assert tables["blame.weights"][0][0] == "v_proj_weight_to_fp16"
    assert len(tables["blame.operations"]) > 5


def test_never(project: Project) -> None:
    result = spoilt(project, "--ane-blame=never")
    result.stdout.no_fnmatch_line("* ane blame*")
    result.stdout.fnmatch_lines(["mini:L00: fidelity failed"])


def test_always_explains_what_passed_at_the_end(project: Project) -> None:
    result = project.packages(good="float32").gate(
        "-k", "fidelity", "--ane-blame", "--junitxml=out.xml"
    )
    result.assert_outcomes(passed=1, deselected=3)
    told = "It has no compressed weights, and none differ from those of the uncompressed package."
    result.stdout.fnmatch_lines(["*= ane blame: own:good =*", "relative error of *", told])
    tree = ElementTree.parse(project.path / "out.xml")
    values = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert told in (values["ane.blame"] or "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BuildError("the disk is full."), "cause not found: the disk is full."),
        (KeyError("x"), "internal error while searching the cause (please report): KeyError('x')"),
    ],
)
def test_what_goes_wrong_hides_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    from pytest_ane.plugin import outcome as blame

    def no(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(blame, "blame_shard", no)
    result = spoilt(project)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["mini:L00: fidelity failed", "  - *below min-cosine*", said])


def test_three_shards_are_explained(project: Project) -> None:
    packages = {f"good{i}": "other" for i in range(4)}
    for name in packages:
        project.copy("good").rename(project.path / f"{name}.mlpackage")
    result = project.packages(**packages).gate("-k", "fidelity")
    result.assert_outcomes(failed=4, deselected=9)
    result.stdout.fnmatch_lines(
        ["3 shards were explained already; for this one run: pytest-ane blame own:good3"]
    )
    again = project.packages(**packages).gate("-k", "fidelity", "--ane-blame=always")
    again.stdout.no_fnmatch_line("*explained already*")


@pytest.mark.drawn
@pytest.mark.heavy
def test_a_real_block_with_a_spoilt_value_projection(project: Project) -> None:
    """SmolLM2's L01 with values of two bits."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "shards.toml").read_text()
    good = '{ weights = "v_proj*", mode = "kmeans", nbits = 6, group_size = 16 },\n]\n\n[models'
    assert good in text
    bad = '{ weights = "v_proj*", mode = "kmeans", nbits = 2 },\n]\n\n[models'
    result = project.manifest(text.replace(good, bad)).gate("-k", "fidelity", shards="L01")
    result.assert_outcomes(failed=2, deselected=4)
    result.stdout.fnmatch_lines(
        ["weight *", "v_proj_weight_to_fp16 *, 2 bits *-bit kmeans, groups of 32 * kB"]
    )
