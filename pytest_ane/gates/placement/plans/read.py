"""Recorded plans on disk, by what is in the file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import coremltools, counts, fields, logs
from pytest_ane.gates.placement.plans.record import Plan

_MOST_BYTES = 64 << 20
_FORMATS = "coremltools compute-plan JSON, counts of operations, a log of Core ML"
# Lines of a log may begin with a bracket: `[Espresso::handle_ex_plan] ...`.
_LIKE_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{])")
_JSON = (
    (coremltools.recognises, coremltools.read),
    (counts.recognises_data, counts.read_data),
)
_TEXT = (
    (counts.recognises, counts.read),
    (logs.recognises, logs.read),
)


def read_plan(path: Path | str) -> Plan:
    """Read a recorded plan in any known format.

    Raises:
        PlanError: missing, too large, damaged, contradictory, or in no known format.
    """
    path = Path(path)
    try:
        return parse_plan(_bytes(path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}; record the plan again.") from None


def parse_plan(data: bytes) -> Plan:
    """The plan in a file's bytes.

    Raises:
        PlanError: as `read_plan`, without the file's name.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"byte {error.start} is no UTF-8 text") from None
    if _LIKE_JSON.match(text) and not counts.is_lines(text):
        parsed = fields.parse_json(text)
        for recognises, read in _JSON:
            if recognises(parsed):
                return read(parsed)
    else:
        for recognises_text, read_text in _TEXT:
            if recognises_text(text):
                plan = read_text(text)
                return replace(plan, messages=plan.messages or logs.explain(text))
    raise PlanError(f"is none of these: {_FORMATS}")


def _bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise PlanError("is no regular file")
        if status.st_size > _MOST_BYTES:
            raise PlanError(f"has {status.st_size:,} bytes, more than any plan should")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
