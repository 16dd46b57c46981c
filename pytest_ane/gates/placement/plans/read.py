"""Recorded plans on disk, by what is in the file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

from pytest_ane.backends.coreml.errors import recognise
from pytest_ane.gates.placement.plans import analytics, coremltools, counts, fields
from pytest_ane.gates.placement.plans.record import Message, Plan
from pytest_ane.mlprogram.errors import PlanError

_MOST_BYTES = 64 << 20
_FORMATS = "coremltools compute-plan JSON, analytics.mil, counts of operations, a log of Core ML"
# Lines of a log may begin with a bracket: `[Espresso::handle_ex_plan] ...`.
_LIKE_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{])")
_JSON = (
    (coremltools.recognises, coremltools.read),
    (counts.recognises_data, counts.read_data),
)
_MOST, _LONGEST = 1000, 200
"""Lines of a log that are kept, and characters of each."""


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
    elif analytics.recognises(text):
        return analytics.read(text)
    else:
        messages = explain(text)
        if counts.recognises(text):
            return replace(counts.read(text), messages=messages)
        if messages:
            return Plan("log", messages=messages)
    raise PlanError(f"is none of these: {_FORMATS}")


def explain(text: str) -> tuple[Message, ...]:
    """The lines of a log with Core ML's known error texts, in order; at most 1,000.

    They do not say where an op runs. A clean log proves nothing: the compiler may speak from a
    helper process, and only when it compiles; Core ML falls back to the CPU without a word.
    """
    messages: list[Message] = []
    for number, line in enumerate(text.splitlines(), 1):
        if known := recognise(line):
            messages.append(Message(line.strip()[:_LONGEST], f"{known}.", known.failure, number))
            if len(messages) == _MOST:
                break
    return tuple(messages)


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
