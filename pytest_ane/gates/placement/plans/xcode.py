"""Xcode's performance reports: `report.json` inside an `.mlperf` folder. Experimental.

The keys are those that published readers of such reports use; no report itself was at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import fields
from pytest_ane.gates.placement.plans.record import Device, Plan, PlannedFunction, PlannedOperation

_UNITS = ("CPU", "CPU and GPU", "all", "CPU and Neural Engine")
_Scope = tuple[tuple[str, int], ...]


def recognises(data: Any) -> bool:
    """Whether JSON data is in this format."""
    return isinstance(data, Mapping) and "deviceResults" in data


def read(data: Any) -> Plan:
    """The plan of a report; its timings stay in `extra`.

    Raises:
        PlanError: a field is missing or of another kind, or the model is no ML Program.
    """
    top = fields.mapping(data, "the report")
    results = fields.mapping(top.get("deviceResults"), "deviceResults")
    structure = fields.mapping(results.get("modelStructure"), "deviceResults.modelStructure")
    if "program" not in structure:
        raise PlanError("deviceResults.modelStructure has no program: it is of no ML Program")
    program = fields.mapping(structure["program"], "program")
    inner = fields.mapping(program.get("_0"), "program._0")
    functions = fields.mapping(inner.get("functions"), "functions")
    return Plan(
        "xcode",
        tuple(_function(name, value) for name, value in functions.items()),
        compute_units=_units(top.get("computeUnit")),
        extra={**fields.rest(top, "deviceResults"), **fields.rest(results, "modelStructure")},
    )


def _units(value: Any) -> str:
    if value is None:
        return ""
    unit = fields.count(value, "computeUnit")
    return _UNITS[unit] if unit < len(_UNITS) else str(unit)


def _function(name: str, value: Any) -> PlannedFunction:
    where = f"functions.{name}"
    block = fields.mapping(value, where).get("block")
    return PlannedFunction(name, tuple(_block(block, f"{where}.block", ())))


def _block(value: Any, where: str, scope: _Scope) -> Iterator[PlannedOperation]:
    if len(scope) > fields.MOST_NESTED:
        raise PlanError("blocks are nested too deeply")
    operations = fields.mapping(value, where).get("operations")
    for index, one in enumerate(fields.sequence(operations, f"{where}.operations")):
        at = f"{where}.operations[{index}]"
        operation = _operation(one, at, scope)
        yield operation
        blocks = fields.optional(one.get("blocks"), f"{at}.blocks", fields.sequence) or ()
        for number, block in enumerate(blocks):
            inner = (*scope, (operation.name, number))
            yield from _block(block, f"{at}.blocks[{number}]", inner)


def _operation(value: Any, where: str, scope: _Scope) -> PlannedOperation:
    entry = fields.mapping(value, where)
    usage = fields.optional(entry.get("deviceUsage"), f"{where}.deviceUsage", fields.mapping) or {}
    cost = fields.optional(entry.get("cost"), f"{where}.cost", fields.mapping) or {}
    outputs = fields.sequence(entry.get("outputs", []), f"{where}.outputs")
    first = fields.mapping(outputs[0], f"{where}.outputs[0]").get("name") if outputs else ""
    supported = fields.sequence(usage.get("supported") or [], f"{where}.supported")
    return PlannedOperation(
        fields.string(first, f"{where}.outputs[0].name"),
        fields.op_type(fields.string(entry.get("operatorName"), f"{where}.operatorName")),
        _device(usage.get("preferred"), f"{where}.preferred"),
        tuple(d for one in supported if (d := _device(one, f"{where}.supported"))),
        fields.optional(cost.get("weight"), f"{where}.cost.weight", fields.number),
        scope,
        extra=fields.rest(entry, "deviceUsage", "cost", "operatorName", "blocks"),
    )


def _device(value: Any, where: str) -> Device | None:
    if value is None:
        return None
    kind = fields.mapping(value, where).get("deviceType")
    return fields.device(fields.string(kind, f"{where}.deviceType"), f"{where}.deviceType")
