"""The table of rules in docs/reference/placement.md, generated from the rules themselves.

`python -m pytest_ane.placement.table docs/reference/placement.md` writes it anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ane.errors import AneError
from pytest_ane.placement.rules import ALL_RULES, OpRule, Rule

BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"


def table() -> str:
    """All rules as a Markdown table."""
    head = "| rule | outcome | what | matches | seen | where | what to do | source |"
    line = "|---|---|---|---|---|---|---|---|"
    return "\n".join((head, line, *map(_row, ALL_RULES)))


def rewrite(page: str) -> str:
    """A page with the text between its two marks replaced by the current table.

    Raises:
        AneError: the page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise AneError(f"The page has no place for the table; put {BEGIN} and {END} into it.")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(rule: Rule) -> str:
    cells = (
        rule.id,
        rule.outcome,
        rule.title,
        _matches(rule),
        rule.consequence,
        rule.scope,
        rule.fix,
        f"{rule.source} (grade {rule.grade})",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _matches(rule: Rule) -> str:
    if rule.matches or not isinstance(rule, OpRule):
        return rule.matches
    return ", ".join(f"`{op}`" for op in sorted(rule.ops))


def main(path: Path) -> None:
    """Bring a page's table up to date, in place."""
    path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
