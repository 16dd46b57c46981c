"""Files that tell of a whole run: those it is written to, and documents that are drawn with it.

A run is written in the format that its file's name ends with: a line of `FORMATS` each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.strict_json import parse_json
from pytest_ane.mlprogram.text import printable, shown
from pytest_ane.records.run import is_run
from pytest_ane.report.github import summary
from pytest_ane.report.run import Run

DOCUMENTS = ("recommend", "bound", "drift")
"""Commands whose documents are drawn, in the order in which they are listed."""
_MOST_BYTES = 1 << 28


def as_html(run: Run) -> str:
    """The page, which alone shows more than the run: earlier ones, documents, write-ups."""
    from pytest_ane.report.html._page import page

    return page(run)


FORMATS: Mapping[str, Callable[[Run], str]] = {
    ".html": as_html,
    ".md": lambda run: summary(run.rows, run.header),
}


def format_of(file: Path) -> Callable[[Run], str]:
    """The format of a file, by the end of its name; `ReportError` for another end."""
    try:
        return FORMATS[file.suffix.lower()]
    except KeyError:
        ends = " or ".join(FORMATS)
        raise ReportError(
            f"{file.name}: there is no such format; end the file's name with {ends}."
        ) from None


def read_document(path: Path, models: Collection[str], of_run: str) -> dict[str, Any]:
    """What a command printed with `--json`; texts as people may read them.

    `models` are those of the run; `of_run` says what to do with the file of a run instead.
    `ReportError` where it is missing, damaged, of another command, or of another model.
    """
    from pytest_ane.report.charts.run import pictures_of, spec

    other = f"{path} is not what a command printed with --json"
    try:
        if is_run(path):
            raise ReportError(f"{other}. {of_run}")
        if path.stat().st_size > _MOST_BYTES:
            raise ReportError(f"{path} has more bytes than what any command prints.")
        document: Any = shown(parse_json(path.read_text()))
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}).") from None
    except RecursionError:
        raise ReportError(f"{other}: the JSON is nested too deeply.") from None
    except ValueError as error:
        raise ReportError(f"{other}: {error}.") from None
    if not isinstance(document, dict) or document.get("command") not in DOCUMENTS:
        raise ReportError(f"{other} and a report can draw; those are {', '.join(DOCUMENTS)}.")
    if (model := document.get("model")) is not None and model not in models:
        known = ", ".join(sorted(models))
        raise ReportError(f"{path} is of model {model}, and the run is of {known}.")
    try:
        for picture in pictures_of(Run("", (), documents=(document,))):
            spec(picture)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReportError(f"{other}, or is damaged: {printable(repr(error))}.") from None
    return document
