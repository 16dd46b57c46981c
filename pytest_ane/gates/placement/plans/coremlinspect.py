"""The text that CoreMLInspect prints (github.com/smpanaro/CoreMLInspect, `Sources/CLI.swift`).

Experimental: it was written from that source, no file itself was at hand.

    0.68% G|C  x_1_cast_fp16 = ios16.gather(x: ["wte"], indices: ["input_ids"])

The letter before the bar is the preferred device, those behind it the *other* supported ones. Cost
is cut to five characters, so `12.34%` has lost its sign. Nested blocks are not printed.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import fields
from pytest_ane.gates.placement.plans.record import Device, Plan, PlannedFunction, PlannedOperation

_UNITS = re.compile(r"^Analyzing model for compute unit \[(\w{1,40})\]", re.MULTILINE)
_FUNCTION = re.compile(r"^func ([^\s(]+)\(([^()]*)\) \{$", re.MULTILINE)
_DEVICES = re.compile(r"([CGN?])\|([CGN?]{0,3})")
_COST = re.compile(r"\d{1,3}(?:\.\d{0,2})?%?")
_CALL = re.compile(r"([\w.]+)\((.*)\)")
_QUOTED = re.compile(r'"([^"]*)"')


def recognises(text: str) -> bool:
    """Whether a text is in this format."""
    return "Key: C=CPU, G=GPU, N=NeuralEngine" in text or bool(_FUNCTION.search(text))


def read(text: str) -> Plan:
    """The plan of a text.

    Raises:
        PlanError: a line of a function cannot be read, or the last function does not end.
    """
    functions: list[PlannedFunction] = []
    reading: _Reading | None = None
    for number, line in enumerate(text.splitlines(), 1):
        head = _FUNCTION.match(line)
        if reading is None:
            reading = _Reading(head[1], head[2]) if head else None
        elif line == "}":
            functions.append(PlannedFunction(reading.name, tuple(reading.operations)))
            reading = None
        elif line.strip().startswith("-> ("):
            reading.ends(line)
        elif line.strip():
            reading.operation(line, number)
    if reading is not None:
        raise PlanError(f"the text ends inside function {reading.name!r}")
    if not functions:
        raise PlanError("the text has no function, `func main(...) {`")
    units = _UNITS.search(text)
    return Plan("CoreMLInspect", tuple(functions), compute_units=units[1] if units else "")


class _Reading:
    """A function while its lines are read."""

    def __init__(self, name: str, inputs: str) -> None:
        self.name = name
        self.operations: list[PlannedOperation] = []
        self._inputs = {one.strip() for one in inputs.split(",")}

    def operation(self, line: str, number: int) -> None:
        left, equals, right = line.partition(" = ")
        call = _CALL.fullmatch(right.strip())
        if not equals or not call or not left.strip():
            raise PlanError(f"line {number} is no operation, `name = op(...)`")
        cost, preferred, supported, outputs = _columns(left, number)
        names = [one.strip() for one in outputs.split(",")]
        op, read = fields.op_type(call[1]), _QUOTED.findall(call[2])
        self.operations.append(
            PlannedOperation(
                names[0],
                op,
                preferred,
                supported,
                cost,
                boundary=op == "cast" and any(name in self._inputs for name in read),
                extra={"outputs": names, "reads": read},
            )
        )

    def ends(self, line: str) -> None:
        """The names of a function's outputs make the casts that compute them boundary casts."""
        outputs = {one.strip() for one in line.strip()[4:].rstrip(")").split(",")}
        self.operations = [
            replace(one, boundary=True) if one.op == "cast" and one.name in outputs else one
            for one in self.operations
        ]


def _columns(left: str, number: int) -> tuple[float | None, Device | None, tuple[Device, ...], str]:
    words = left.split(maxsplit=2)
    cost = None
    if len(words) > 1 and _COST.fullmatch(words[0]):
        cost = float(words[0].rstrip("%")) / 100
        words = left.split(maxsplit=1)[1].split(maxsplit=1)
    else:
        words = left.split(maxsplit=1)
    where = f"line {number}"
    devices = _DEVICES.fullmatch(words[0]) if len(words) > 1 else None
    if devices is None:
        if any(mark in left for mark in "|%"):
            raise PlanError(f"{where}: the devices before the name cannot be read")
        return cost, None, (), " ".join(words)
    preferred = fields.device(devices[1], where)
    known = [fields.device(letter, where) for letter in devices[0] if letter != "|"]
    return cost, preferred, tuple(device for device in known if device), words[1]
