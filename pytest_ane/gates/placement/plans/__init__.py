"""Recorded placement plans: what other tools wrote down of Core ML's plan, as one record.

Only the preferred device is placement. `summarise` says what a plan proves. Beside coremltools'
plans and `analytics.mil` there are the counts and short lines that scripts around MLComputePlan
print, as JSON or as text:

    {"aneOps": 1058, "chunkName": "chunk1", "nonANE": 0, "totalOps": 1058}
    {"ane_ops": 217, "schedulable_ops": 217, "total_ops": 625, "per_op_type": {"conv": {"ANE": 36}}}
    conv_total=4 conv_ane=4 conv_non_ane=0; compute_total=148 compute_ane=148 PASS=True
    op=matmul  preferred=MLCPUComputeDevice  supported=[MLCPU, MLGPU, MLNeuralEngine]
    ANE:   412 / 480 ( 85.8%)

What such a file thinks of itself (`PASS=True`) is not believed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_ane.backends.coreml.errors import recognise
from pytest_ane.gates.placement.plans import _fields as fields
from pytest_ane.gates.placement.plans import analytics, coremltools
from pytest_ane.gates.placement.plans._record import (
    Message,
    Plan,
    PlannedFunction,
    PlannedOperation,
    Tally,
)
from pytest_ane.gates.placement.plans.join import Summary, join, plain, summarise
from pytest_ane.mlprogram.atomic import read_regular
from pytest_ane.mlprogram.errors import PlanError

__all__ = [
    "Message", "Plan", "PlannedFunction", "PlannedOperation", "Summary", "Tally", "join",
    "parse_plan", "plain", "read_plan", "summarise",
]  # fmt: skip
_MOST_BYTES = 64 << 20
_FORMATS = "coremltools compute-plan JSON, analytics.mil, counts of operations, a log of Core ML"
# Lines of a log may begin with a bracket: `[Espresso::handle_ex_plan] ...`.
_LIKE_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{])")
_MOST, _LONGEST = 1000, 200
"""Lines of a log that are kept, and characters of each."""


def read_plan(path: Path | str) -> Plan:
    """A recorded plan in any known format; `PlanError` where it is damaged or contradictory."""
    try:
        return parse_plan(read_regular(Path(path), _MOST_BYTES))
    except PlanError as error:
        raise PlanError(f"{path}: {error}; record the plan again.") from None
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise PlanError(f"{path}: {why}; record the plan again.") from None


def parse_plan(data: bytes) -> Plan:
    """The plan in a file's bytes; `PlanError` as of `read_plan`, without the file's name."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"byte {error.start} is no UTF-8 text") from None
    if _LIKE_JSON.match(text) and not _is_lines(text):
        parsed = fields.parse_json(text)
        if coremltools.recognises(parsed):
            return coremltools.read(parsed)
        if _is_counts(parsed):
            return _read_data(parsed)
    elif analytics.recognises(text):
        return analytics.read(text)
    else:
        messages, forms = explain(text), (_OPERATION, _ANE, _SHARE)
        counted = any(one.search(line) for line in text.splitlines() for one in forms)
        if counted or _is_lines(text):
            return replace(_read_counts(text), messages=messages)
        if messages:
            return Plan("log", messages=messages)
    raise PlanError(f"is none of these: {_FORMATS}")


def explain(text: str) -> tuple[Message, ...]:
    """The lines of a log with Core ML's known error texts, in order; at most 1,000.

    They do not say where an op runs. A clean log proves nothing: the compiler may speak from a
    helper process, and only when it compiles; Core ML falls back to the CPU without a word.
    """
    known = ((line, number, recognise(line)) for number, line in enumerate(text.splitlines(), 1))
    messages = (
        Message(line.strip()[:_LONGEST], f"{error}.", error.failure, number)
        for line, number, error in known
        if error
    )
    return tuple(islice(messages, _MOST))


_CHUNK = ("aneOps", "totalOps", "nonANE")
_TYPES = ("ane_ops", "schedulable_ops", "total_ops")
_OPERATION = re.compile(
    r"^\s*op=(?P<op>[\w.]+)\s+preferred=(?P<preferred>[\w?]*)\s+supported=\[(?P<supported>[^\]]*)\]"
)
_PAIR = re.compile(r"\b([a-z]\w{0,60}?)_(total|ane|non_ane)=(\d{1,12})(?:/(\d{1,12}))?(?!\w)")
_ANE = re.compile(r"[a-z]_ane=\d")
_SHARE = re.compile(r"^\s*(ANE|GPU|CPU):\s+(\d{1,12}) / (\d{1,12})\b")


def _is_counts(data: Any) -> bool:
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, Mapping) and (_CHUNK[0] in first or _TYPES[0] in first)


def _read_data(data: Any) -> Plan:
    """The plan of one JSON object of counts, or of a list of them."""
    entries = list(data) if isinstance(data, list) else [data]
    tallies = [tally for at, entry in enumerate(entries) for tally in _entry(entry, f"entry {at}")]
    return Plan("counts", tallies=tuple(tallies))


def _read_counts(text: str) -> Plan:
    if _is_lines(text):
        return _read_data([fields.parse_json(line) for line in text.splitlines() if line.strip()])
    operations, tallies = list[PlannedOperation](), list[Tally]()
    for number, line in enumerate(text.splitlines(), 1):
        where, share = f"line {number}", _SHARE.match(line)
        if found := _OPERATION.match(line):
            named = (fields.device(one, where) for one in found["supported"].split(","))
            device = fields.device(found["preferred"], where)
            supported = tuple(device for device in named if device)
            operations.append(PlannedOperation("", fields.op_type(found["op"]), device, supported))
            continue
        # `ANE: 412 / 480`; the other devices' lines say the same from their side.
        if share and share[1] == "ANE":
            tallies.append(_read_tally(None, int(share[2]), int(share[3]), where))
        tallies += _pairs(line, where)
    if not operations and not tallies:
        raise PlanError("the text has no count of operations that have a device")
    functions = (PlannedFunction("", tuple(operations)),) if operations else ()
    return Plan("counts", functions, tuple(tallies))


def _is_lines(text: str) -> bool:
    first, _, second = text.strip().partition("\n")
    try:
        return second[:1] == "{" and _is_counts(json.loads(first))
    except (ValueError, RecursionError):
        return False


def _entry(value: Any, where: str) -> Iterator[Tally]:
    entry = fields.mapping(value, where)

    def read(key: str) -> int:
        return fields.count(entry.get(key), f"{where}: {key}")

    if _CHUNK[0] in entry:
        ane, total = read(_CHUNK[0]), read(_CHUNK[1])
        placed = total if entry.get(_CHUNK[2]) is None else ane + read(_CHUNK[2])
        if placed > total:
            raise PlanError(f"{where}: {placed} operations have a device, of {total} in all")
        yield _read_tally(None, ane, placed, where)
        return
    ane, total = read(_TYPES[0]), read(_TYPES[1])
    if entry.get(_TYPES[2]) is not None and total > (everything := read(_TYPES[2])):
        raise PlanError(f"{where}: {total} schedulable operations, of {everything} in all")
    yield _read_tally(None, ane, total, where)
    kinds = fields.optional(entry.get("per_op_type"), f"{where}: per_op_type", fields.mapping)
    for kind, counts in (kinds or {}).items():
        at = f"{where}: per_op_type.{kind}"
        found: Counter[str | None] = Counter()
        for word, count in fields.mapping(counts, at).items():
            found[fields.device(word, at)] += fields.count(count, at)
        placed = sum(count for device, count in found.items() if device)
        yield _read_tally(fields.op_type(kind), found["ANE"], placed, at)


def _pairs(line: str, where: str) -> Iterator[Tally]:
    """`conv_total=4 conv_ane=4 conv_non_ane=0; compute_total=148 compute_ane=148`."""
    kinds: dict[str, dict[str, int]] = {}
    for kind, key, value, total in _PAIR.findall(line):
        counts = kinds.setdefault(kind, {})
        for name, digits in ((key, value), ("total", total)):
            if digits and counts.setdefault(name, int(digits)) != int(digits):
                raise PlanError(f"{where}: {kind}_{name} is {counts[name]} and {digits}")
    for kind, counts in kinds.items():
        ane, off = counts.get("ane"), counts.get("non_ane")
        if ane is None and off is None:
            continue
        if ane is None or ("total" not in counts and off is None):
            raise PlanError(f"{where}: {kind}_ane, or what it is counted of, is missing")
        total = counts.get("total", ane + (off or 0))
        if off is not None and ane + off != total:
            wrong = f"{kind}_ane {ane} and {kind}_non_ane {off} are not {total} together"
            raise PlanError(f"{where}: {wrong}")
        yield _read_tally(None if kind == "compute" else kind, ane, total, f"{where}: {kind}")


def _read_tally(op: str | None, ane: int, total: int, where: str) -> Tally:
    if ane > total:
        raise PlanError(f"{where}: {ane} operations on the ANE, of {total}")
    return Tally(op, ane, total)
