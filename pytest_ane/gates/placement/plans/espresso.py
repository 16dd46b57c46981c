"""Espresso's log: estimates of its cost model, and reasons why the ANE cannot take an op.

    [CostModelFeature],y_cast_fp16,?,conv,gFlopCnt,0.5,...,Bound:Memory,...,Runtime,0.0123
    Unsupported op 12 (slice_update): Cannot support standalone slice_update

Neither says where an op runs.
"""

from __future__ import annotations

import re

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import errors, fields
from pytest_ane.gates.placement.plans.record import Message, Plan, PlannedFunction, PlannedOperation

_FEATURE = "[CostModelFeature],"
_UNSUPPORTED = re.compile(r"Unsupported op (\d{1,9}) \(([^()]{1,200})\): (.+)")
_MOST = 1000
_LONGEST = 200
_MEANINGS = {
    "Cannot support standalone slice_update": "The ANE updates slices only as part of a state.",
    "Unsupported tensor data type: int32": "The ANE computes no int32; use fp16, or the host.",
}


def recognises(text: str) -> bool:
    """Whether a text has lines of this format."""
    return _FEATURE in text or "Unsupported op " in text


def read(text: str) -> Plan:
    """Estimates as operations without a device, reasons as messages.

    Raises:
        PlanError: a line is cut off, or there is none after all.
    """
    operations: list[PlannedOperation] = []
    messages: list[Message] = list(errors.explain(text))
    for number, line in enumerate(text.splitlines(), 1):
        if _FEATURE in line:
            operations.append(_operation(line.split(_FEATURE, 1)[1], number))
        elif (found := _UNSUPPORTED.search(line)) and len(messages) < _MOST:
            messages.append(_message(found, number))
    if not operations and not messages:
        raise PlanError("the log has no line of Espresso that can be read")
    functions = (PlannedFunction("", tuple(operations)),) if operations else ()
    return Plan("espresso", functions, messages=tuple(sorted(messages, key=lambda m: m.line)))


def _message(found: re.Match[str], number: int) -> Message:
    reason = found[3].strip()
    known = next((say for text, say in _MEANINGS.items() if text in reason), None)
    said = f"op {found[1]}, {fields.op_type(found[2])}: {known or 'The ANE cannot take it.'}"
    return Message(found[0][:_LONGEST], said, True, number)


def _operation(line: str, number: int) -> PlannedOperation:
    words = [word.strip() for word in line.split(",")]
    if len(words) < 3 or not words[0] or not words[2]:
        raise PlanError(f"line {number} is cut off after [CostModelFeature]")
    extra: dict[str, str] = {}
    rest = iter(words[3:])
    for word in rest:
        key, colon, value = word.partition(":")
        extra[key] = value if colon else next(rest, "")
    return PlannedOperation(words[0], fields.op_type(words[2]), extra=extra)
