"""Counts and short lines that scripts around MLComputePlan print, as JSON or as text.

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
from typing import Any

from pytest_ane.gates.placement.plans import fields
from pytest_ane.gates.placement.plans.record import Plan, PlannedFunction, PlannedOperation, Tally
from pytest_ane.mlprogram.errors import PlanError

_KEYS = ("aneOps", "ane_ops")
_OPERATION = re.compile(
    r"^\s*op=(?P<op>[\w.]+)\s+preferred=(?P<preferred>[\w?]*)\s+supported=\[(?P<supported>[^\]]*)\]"
)
_PAIR = re.compile(r"\b([a-z]\w{0,60}?)_(total|ane|non_ane)=(\d{1,12})(?:/(\d{1,12}))?(?!\w)")
_ANE = re.compile(r"[a-z]_ane=\d")
_SHARE = re.compile(r"^\s*(ANE|GPU|CPU):\s+(\d{1,12}) / (\d{1,12})\b")


def recognises_data(data: Any) -> bool:
    """Whether JSON data, or the first element of a list, has one of the counts."""
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, Mapping) and any(key in first for key in _KEYS)


def recognises(text: str) -> bool:
    """Whether a text has a line of one of the forms, JSON lines among them."""
    forms = (_OPERATION, _ANE, _SHARE)
    lines = text.splitlines()
    return any(one.search(line) for line in lines for one in forms) or is_lines(text)


def read_data(data: Any) -> Plan:
    """The plan of one JSON object of counts, or of a list of them.

    Raises:
        PlanError: a count is missing, none, or contradicts another.
    """
    entries = list(data) if isinstance(data, list) else [data]
    tallies: list[Tally] = []
    for index, value in enumerate(entries):
        entry = fields.mapping(value, f"entry {index}")
        tallies += _chunk(entry, index) if "aneOps" in entry else _by_type(entry, index)
    return Plan("counts", tallies=tuple(tallies))


def read(text: str) -> Plan:
    """The plan of a text.

    Raises:
        PlanError: counts contradict each other, or a device is unknown.
    """
    if is_lines(text):
        return read_data([fields.parse_json(line) for line in text.splitlines() if line.strip()])
    operations: list[PlannedOperation] = []
    tallies: list[Tally] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _OPERATION.match(line):
            operations.append(_operation(found, number))
        else:
            tallies += (*_shares(line, number), *_pairs(line, number))
    functions = (PlannedFunction("", tuple(operations)),) if operations else ()
    if not operations and not tallies:
        raise PlanError("the text has no count of operations that have a device")
    return Plan("counts", functions, tuple(tallies))


def is_lines(text: str) -> bool:
    """Whether a text is one JSON object of counts a line."""
    first, _, second = text.strip().partition("\n")
    try:
        return second[:1] == "{" and recognises_data(json.loads(first))
    except (ValueError, RecursionError):
        return False


def _chunk(entry: Mapping[str, Any], index: int) -> list[Tally]:
    ane = fields.count(entry.get("aneOps"), f"entry {index}: aneOps")
    total = fields.count(entry.get("totalOps"), f"entry {index}: totalOps")
    off = fields.optional(entry.get("nonANE"), f"entry {index}: nonANE", fields.count)
    placed = total if off is None else ane + off
    if placed > total:
        raise PlanError(f"entry {index}: {placed} operations have a device, of {total} in all")
    return [_tally(None, ane, placed, f"entry {index}")]


def _by_type(entry: Mapping[str, Any], index: int) -> list[Tally]:
    where = f"entry {index}"
    ane = fields.count(entry.get("ane_ops"), f"{where}: ane_ops")
    total = fields.count(entry.get("schedulable_ops"), f"{where}: schedulable_ops")
    everything = fields.optional(entry.get("total_ops"), f"{where}: total_ops", fields.count)
    if everything is not None and total > everything:
        raise PlanError(f"{where}: {total} schedulable operations, of {everything} in all")
    tallies = [_tally(None, ane, total, where)]
    kinds = fields.optional(entry.get("per_op_type"), f"{where}: per_op_type", fields.mapping)
    for kind, counts in (kinds or {}).items():
        at = f"{where}: per_op_type.{kind}"
        found: Counter[str | None] = Counter()
        for word, value in fields.mapping(counts, at).items():
            found[fields.device(word, at)] += fields.count(value, at)
        placed = sum(count for device, count in found.items() if device)
        tallies.append(_tally(fields.op_type(kind), found["ANE"], placed, at))
    return tallies


def _operation(found: re.Match[str], number: int) -> PlannedOperation:
    where = f"line {number}"
    named = (fields.device(one, where) for one in found["supported"].split(","))
    return PlannedOperation(
        "",
        fields.op_type(found["op"]),
        fields.device(found["preferred"], where),
        tuple(device for device in named if device),
    )


def _shares(line: str, number: int) -> Iterator[Tally]:
    """`ANE: 412 / 480`; the other devices' lines say the same from their side."""
    found = _SHARE.match(line)
    if found and found[1] == "ANE":
        yield _tally(None, int(found[2]), int(found[3]), f"line {number}")


def _pairs(line: str, number: int) -> Iterator[Tally]:
    """`conv_total=4 conv_ane=4 conv_non_ane=0; compute_total=148 compute_ane=148`."""
    kinds: dict[str, dict[str, int]] = {}
    for kind, key, value, total in _PAIR.findall(line):
        counts = kinds.setdefault(kind, {})
        for name, digits in ((key, value), ("total", total)):
            if digits and counts.setdefault(name, int(digits)) != int(digits):
                raise PlanError(f"line {number}: {kind}_{name} is {counts[name]} and {digits}")
    for kind, counts in kinds.items():
        where, ane, off = f"line {number}: {kind}", counts.get("ane"), counts.get("non_ane")
        if ane is None and off is None:
            continue
        if ane is None or ("total" not in counts and off is None):
            raise PlanError(f"{where}_ane, or what it is counted of, is missing")
        total = counts.get("total", ane + (off or 0))
        if off is not None and ane + off != total:
            raise PlanError(f"{where}_ane {ane} and {kind}_non_ane {off} are not {total} together")
        yield _tally(None if kind == "compute" else kind, ane, total, where)


def _tally(op: str | None, ane: int, total: int, where: str) -> Tally:
    if ane > total:
        raise PlanError(f"{where}: {ane} operations on the ANE, of {total}")
    return Tally(op, ane, total)
