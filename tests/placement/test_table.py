"""docs/reference/placement.md carries the table of rules, and the table is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.errors import AneError
from pytest_ane.placement.rules import ALL_RULES
from pytest_ane.placement.table import BEGIN, END, main, rewrite, table

NAME = "docs/reference/placement.md"
PAGE = Path(__file__).parents[2] / NAME


def test_the_documented_table_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewrite(page), f"run: python -m pytest_ane.placement.table {NAME}"


def test_every_rule_has_a_row_of_eight_cells() -> None:
    rows = table().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {rule.id}" for rule in ALL_RULES]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {9}
    assert not any("|  |" in row for row in rows), "no cell is empty"


def test_rewrite_replaces_what_stands_between_the_marks() -> None:
    assert rewrite(f"a\n{BEGIN}\nold\n{END}\nb\n") == f"a\n{BEGIN}\n{table()}\n{END}\nb\n"


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(AneError, match="The page has no place for the table"):
        rewrite(page)


def test_main_rewrites_in_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    main(page)
    assert page.read_text(encoding="utf-8") == f"{BEGIN}\n{table()}\n{END}"
