"""Files of a whole run's verdicts, by the end of the file's name; a new format is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_ane.report.github import summary
from pytest_ane.report.run import Run, to_json

Format: TypeAlias = Callable[[Run], str]


def as_html(run: Run) -> str:
    """The page; jinja2 is imported for nothing else."""
    from pytest_ane.report.html import page

    return page(run)


FORMATS: Mapping[str, Format] = {
    ".html": as_html,
    ".json": to_json,
    ".md": lambda run: summary(run.rows, run.header),
}
