"""Logs: Core ML's known error texts, and what Espresso's cost model estimates. Experimental.

    [CostModelFeature],y_cast_fp16,?,conv,gFlopCnt,0.5,...,Bound:Memory,...,Runtime,0.0123
    Unsupported op 12 (slice_update): Cannot support standalone slice_update

Neither says where an op runs. A clean log proves nothing: the compiler may speak from a helper
process, and only when it compiles; Core ML falls back to the CPU without a word to the program.
"""

from __future__ import annotations

import re

from pytest_ane.backends.coreml.errors import KNOWN_ERRORS, recognise
from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import fields
from pytest_ane.gates.placement.plans.record import Message, Plan, PlannedFunction, PlannedOperation

_FEATURE = "[CostModelFeature],"
_UNSUPPORTED = re.compile(r"Unsupported op (\d{1,9}) \(([^()]{1,200})\): (.+)")
_MOST = 1000
_LONGEST = 200
_MEANINGS = {
    "Cannot support standalone slice_update": "The ANE updates slices only as part of a state.",
    "Unsupported tensor data type: int32": "The ANE computes no int32; use fp16, or the host.",
}


def explain(text: str) -> tuple[Message, ...]:
    """The known lines of a log, in order; at most 1,000."""
    messages: list[Message] = []
    for number, line in enumerate(text.splitlines(), 1):
        if known := recognise(line):
            messages.append(Message(line.strip()[:_LONGEST], f"{known}.", known.failure, number))
            if len(messages) == _MOST:
                break
    return tuple(messages)


def recognises(text: str) -> bool:
    """Whether a text has a known line."""
    return any(part in text for known in KNOWN_ERRORS for part in known.parts[:1]) and bool(
        explain(text)
    )


def read(text: str) -> Plan:
    """A log as a plan: messages, and no word of where an operation runs."""
    return Plan("log", messages=explain(text))


def recognises_espresso(text: str) -> bool:
    """Whether a text has lines of this format."""
    return _FEATURE in text or "Unsupported op " in text


def read_espresso(text: str) -> Plan:
    """Estimates as operations without a device, reasons as messages.

    Raises:
        PlanError: a line is cut off, or there is none after all.
    """
    operations: list[PlannedOperation] = []
    messages: list[Message] = list(explain(text))
    for number, line in enumerate(text.splitlines(), 1):
        if _FEATURE in line:
            operations.append(_operation(line.split(_FEATURE, 1)[1], number))
        elif (match := _UNSUPPORTED.search(line)) and len(messages) < _MOST:
            messages.append(_message(match, number))
    if not operations and not messages:
        raise PlanError("the log has no line of Espresso that can be read")
    functions = (PlannedFunction("", tuple(operations)),) if operations else ()
    return Plan("espresso", functions, messages=tuple(sorted(messages, key=lambda m: m.line)))


def _message(match: re.Match[str], number: int) -> Message:
    reason = match[3].strip()
    known = next((say for text, say in _MEANINGS.items() if text in reason), None)
    said = f"op {match[1]}, {fields.op_type(match[2])}: {known or 'The ANE cannot take it.'}"
    return Message(match[0][:_LONGEST], said, True, number)


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
