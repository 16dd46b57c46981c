"""Compute plans as coremltools 9 exchanges them: `infos`, a list of devices by path.

`ComputePlan.from_dict` of `coremltools.models.ml_program.experimental.remote_device` reads what
`write` makes; its own `to_dict` is no JSON, because paths are its keys. The app on the device
names an operation by its first output and leaves out those without a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ane.gates.placement.plans import _fields as fields
from pytest_ane.gates.placement.plans._record import Device, Plan, PlannedFunction, PlannedOperation
from pytest_ane.mlprogram.errors import PlanError

_KEYS: dict[str, Device] = {"cpu": "CPU", "gpu": "GPU", "neuralEngine": "ANE"}
_OWN = ("operatorName", "boundaryCast", "folded")
_ADDED, _RENAMED, _TARGET = "compilerAdded", "compilerRenamed", "target"
_ROOT = -1


def recognises(data: Any) -> bool:
    """Whether JSON data is in this format."""
    return isinstance(data, Mapping) and "infos" in data


def read(data: Any) -> Plan:
    """The plan of `{"infos": [...]}`; `PlanError` where it is damaged or contradictory."""
    top = fields.mapping(data, "the plan")
    cores: list[int] = []
    found: dict[str, dict[Any, PlannedOperation]] = {}
    for key, default in (("infos", None), ("unassigned", [])):
        for index, info in enumerate(fields.sequence(top.get(key, default), key)):
            where = f"{key}[{index}]"
            if key == "unassigned" and "deviceUsage" in fields.mapping(info, where):
                raise PlanError(f"{where} has a deviceUsage, which belongs into infos")
            function, operation = _operation(info, where, cores)
            operations = found.setdefault(function, {})
            # Operations without outputs have no name to tell them apart.
            name = operation.name or len(operations)
            known = operations.setdefault((operation.scope, name), operation)
            if known.preferred != operation.preferred:
                devices = f"{known.preferred} and on {operation.preferred}"
                raise PlanError(f"operation {operation.name!r} of {function!r} is on {devices}")
    functions = (PlannedFunction(name, tuple(ops.values())) for name, ops in found.items())
    return Plan(
        "coremltools",
        tuple(functions),
        compute_units=fields.optional(top.get("computeUnits"), "computeUnits", fields.string) or "",
        ane_cores=cores[0] if cores else None,
        extra=fields.rest(top, "infos", "unassigned", "computeUnits", _ADDED, _RENAMED, _TARGET),
        added={
            fields.string(kind, _ADDED): fields.count(number, f"{_ADDED}.{kind}")
            for kind, number in fields.mapping(top.get(_ADDED) or {}, _ADDED).items()
        },
        renamed=fields.optional(top.get(_RENAMED), _RENAMED, fields.count) or 0,
        target=fields.optional(top.get(_TARGET), _TARGET, fields.string) or "",
    )


def write(plan: Plan) -> dict[str, Any]:
    """JSON data of a plan as coremltools 9 has it; ops without a device are `unassigned`."""
    made: dict[str, Any] = {**plan.extra, "infos": []}
    if plan.compute_units:
        made["computeUnits"] = plan.compute_units
    told = {_ADDED: dict(plan.added), _RENAMED: plan.renamed, _TARGET: plan.target}
    made |= {key: value for key, value in told.items() if value}
    cores = plan.ane_cores or 0
    for function, operation in plan.walk():
        info = dict(operation.extra)
        usage = info.pop("deviceUsage", {})
        if operation.preferred:
            supported = [_written(one, cores) for one in operation.supported]
            preferred = _written(operation.preferred, cores)
            info["deviceUsage"] = {**usage, "preferred": preferred, "supported": supported}
        info["estimatedCost"] = operation.cost
        own = (operation.op, operation.boundary, operation.folded)
        info |= {key: value for key, value in zip(_OWN, own, strict=True) if value}
        components: list[Any] = [{"program": {}}, {"programFunction": {"data": {"name": function}}}]
        blocks = [_ROOT, *(index for _, index in operation.scope)]
        names = [*(name for name, _ in operation.scope), operation.name]
        for index, name in zip(blocks, names, strict=True):
            components.append({"programBlock": {"data": {"index": index}}})
            components.append({"programOperation": {"data": {"outputName": name}}})
        key = "infos" if operation.preferred else "unassigned"
        made.setdefault(key, []).append(info | {"path": {"components": components}})
    return made


def _operation(info: Any, where: str, cores: list[int]) -> tuple[str, PlannedOperation]:
    entry = fields.mapping(info, where)
    function, scope, name = _path(entry.get("path"), f"{where}.path")
    at = f"{where}.deviceUsage"
    usage = fields.mapping(entry.get("deviceUsage") or {}, at)
    supported = fields.sequence(usage.get("supported") or [], f"{at}.supported")
    preferred = usage.get("preferred")
    extra = fields.rest(entry, "deviceUsage", "estimatedCost", "path", *_OWN)
    if more := fields.rest(usage, "preferred", "supported"):
        extra["deviceUsage"] = more
    kind = fields.optional(entry.get("operatorName"), f"{where}.operatorName", fields.string)
    return function, PlannedOperation(
        name, fields.op_type(kind) if kind else None,
        None if preferred is None else _device(preferred, f"{at}.preferred", cores),
        tuple(_device(d, f"{at}.supported[{i}]", cores) for i, d in enumerate(supported)),
        fields.optional(entry.get("estimatedCost"), f"{where}.estimatedCost", fields.number), scope,
        entry.get("boundaryCast") is True, folded=entry.get("folded") is True and preferred is None,
        extra=extra,
    )  # fmt: skip


def _device(value: Any, where: str, cores: list[int]) -> Device:
    entry = fields.mapping(value, where)
    found = [key for key in _KEYS if entry.get(key) is not None]
    if len(found) != 1:
        raise PlanError(f"{where} names {len(found)} of cpu, gpu and neuralEngine, not one")
    if found == ["neuralEngine"]:
        total = fields.mapping(entry["neuralEngine"], where).get("totalCoreCount")
        if total is not None:
            cores.append(fields.count(total, f"{where}.totalCoreCount"))
    return _KEYS[found[0]]


def _path(value: Any, where: str) -> tuple[str, tuple[tuple[str, int], ...], str]:
    """Function, enclosing operations and name of `program function block op (block op)*`.

    The app that coremltools 9.0 puts on the device writes the second block of an operation as
    `block 0, block 1`; of several blocks in a row the last is meant.
    """
    components = fields.sequence(fields.mapping(value, where).get("components"), where)
    if len(components) > 2 * fields.MOST_NESTED:
        raise PlanError(f"{where} is nested too deeply")
    path: list[tuple[str, Any]] = []
    for component in components:
        entry = fields.mapping(component, where)
        if len(entry) != 1:
            raise PlanError(f"{where} has a component of {len(entry)} keys, not one")
        ((kind, inner),) = entry.items()
        if kind.startswith(("neuralNetwork", "pipeline")):
            raise PlanError(f"{where} is of a neural network or a pipeline, not of one ML Program")
        if kind == "programBlock" and path and path[-1][0] == kind:
            path.pop()
        path.append((kind, inner))
    nested = ["programBlock", "programOperation"] * max(1, (len(path) - 2) // 2)
    if [kind for kind, _ in path] != ["program", "programFunction", *nested]:
        raise PlanError(f"{where} does not lead from a program to one of its operations")
    data = [fields.mapping(fields.mapping(one, where).get("data"), where) for _, one in path[1:]]
    function = fields.string(data[0].get("name"), f"{where}: the function's name")
    found = [one.get("index") for one in data[1::2]]
    at = f"{where}: a block's index"
    indices = [_ROOT if index == _ROOT else fields.count(index, at) for index in found]
    names = [fields.string(one.get("outputName"), f"{where}: an outputName") for one in data[2::2]]
    return function, tuple(zip(names[:-1], indices[1:], strict=True)), names[-1]


def _written(device: Device, cores: int) -> dict[str, Any]:
    if device == "ANE":
        return {"neuralEngine": {"totalCoreCount": cores}}
    return {device.lower(): {}}
