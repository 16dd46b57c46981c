"""Files of a whole run's verdicts, by the end of the file's name; a new format is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pytest_ane.core.errors import ReportError
from pytest_ane.report.github import summary
from pytest_ane.report.run import Run, to_json

Format: TypeAlias = Callable[[Run], str]


def as_html(run: Run, documents: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page, with charts where they can be drawn; `documents` as of `pictures_of`."""
    from pytest_ane.report.html import page

    try:
        from pytest_ane.report.charts.run import pictures_of
    except ReportError as error:
        return page(run, notes=[str(error)])
    return page(run, pictures_of(run, documents))


FORMATS: Mapping[str, Format] = {
    ".html": as_html,
    ".json": to_json,
    ".md": lambda run: summary(run.rows, run.header),
}
