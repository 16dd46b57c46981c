"""Files of a whole run's verdicts, by the end of the file's name; a new format is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.report.github import summary
from pytest_ane.report.run import Run


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        text: of a run.
        compares: whether it shows more than the run: earlier ones, documents, write-ups.
    """

    text: Callable[[Run], str]
    compares: bool = False


def as_html(run: Run) -> str:
    """The page, with charts where they can be drawn."""
    from pytest_ane.report.html import page

    try:
        from pytest_ane.report.charts.run import pictures_of
    except ReportError as error:
        return page(run, notes=[str(error)])
    return page(run, pictures_of(run))


FORMATS: Mapping[str, Format] = {
    ".html": Format(as_html, compares=True),
    ".md": Format(lambda run: summary(run.rows, run.header)),
}


def format_of(file: Path) -> Format:
    """The format of a file, by the end of its name in small or capital letters.

    Raises:
        ReportError: there is none of that end.
    """
    try:
        return FORMATS[file.suffix.lower()]
    except KeyError:
        ends = " or ".join(FORMATS)
        raise ReportError(
            f"{file.name}: there is no such format; end the file's name with {ends}."
        ) from None
