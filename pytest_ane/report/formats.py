"""Files of a whole run's verdicts, by the end of the file's name; a new format is one line here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from pytest_ane.report.github import summary
from pytest_ane.report.rows import Row, ranked

Format: TypeAlias = Callable[[Sequence[Row], str], str]
"""The text of all rows of a run, whose header line comes second."""


def as_json(rows: Sequence[Row], header: str) -> str:
    """All verdicts with figures, findings, tables and provenance, worst first; strict JSON."""
    verdicts = [row.data or _without_verdict(row) for row in ranked(rows)]
    return json.dumps({"header": header, "verdicts": verdicts}, allow_nan=False, indent=1) + "\n"


FORMATS: Mapping[str, Format] = {".json": as_json, ".md": summary}


def _without_verdict(row: Row) -> dict[str, object]:
    data = asdict(row)
    return {key: data[key] for key in ("gate", "subject", "status", "summary", "reasons")}
