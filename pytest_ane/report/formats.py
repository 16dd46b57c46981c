"""Files of a whole run's verdicts, by the end of the file's name; a new format is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_ane.report.github import summary
from pytest_ane.report.run import Run, to_json

Format: TypeAlias = Callable[[Run], str]

FORMATS: Mapping[str, Format] = {
    ".json": to_json,
    ".md": lambda run: summary(run.rows, run.header),
}
