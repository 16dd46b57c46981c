"""Logs: Core ML's known error texts.

They do not say where an op runs. A clean log proves nothing: the compiler may speak from a helper
process, and only when it compiles; Core ML falls back to the CPU without a word to the program.
"""

from __future__ import annotations

from pytest_ane.backends.coreml.errors import KNOWN_ERRORS, recognise
from pytest_ane.gates.placement.plans.record import Message, Plan

_MOST = 1000
_LONGEST = 200


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
