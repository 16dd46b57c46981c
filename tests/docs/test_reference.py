"""The generated parts of the reference are current, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ane.gates.placement.rules import ALL_RULES
from pytest_ane.manifest import parse
from pytest_ane.mlprogram.errors import ManifestError
from tests.docs import reference
from tests.docs.pages import PAGES, SITE

GENERATED = [page for page in SITE if "<!-- generated: " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.stem)
def test_generated_parts_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == reference.rewrite(text), "out of date; run: python -m tests.docs.reference"


BLOCK = re.compile(r'^```toml(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
WRONG = re.compile(r"unknown key|not valid|must|at least|at most|expected|give a|given")
"""What is said of a manifest that is wrong, and not merely a part of one."""
BLOCKS = [
    pytest.param(block[2], id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")))
    if block[1] in (None, "shards.toml")
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_manifest_on_a_page_is_one_or_a_part_of_one(tmp_path: Path, block: str) -> None:
    said = ""
    try:
        parse(block, tmp_path / "shards.toml")
    except ManifestError as error:
        said = str(error)
    assert [line for line in said.split("\n") if WRONG.search(line)] == []


@pytest.mark.parametrize("block", ["[policy.placement]", "[models.m]\nmax-tokens = 'x'"])
def test_a_wrong_manifest_is_found(tmp_path: Path, block: str) -> None:
    with pytest.raises(ManifestError, match=WRONG.pattern):
        parse(block, tmp_path / "shards.toml")


def test_everything_generated_is_on_a_page() -> None:
    names = {block[2] for page in GENERATED for block in reference.BLOCK.finditer(page.read_text())}
    assert names == set(reference.GENERATORS)


def test_every_argument_has_a_meaning() -> None:
    rows = [line for line in reference.commands().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_placement_rule_has_a_row_of_eight_cells() -> None:
    rows = reference.rules().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {rule.id}" for rule in ALL_RULES]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {9}
    assert not any("|  |" in row for row in rows), "no cell is empty"
