"""`analytics.mil`: the program that Core ML's segmenter placed, with its estimates.

Core ML's compiler leaves it in its cache, in `com.apple.e5rt.e5bundlecache/.../H16G.bundle`. The
attributes of an operation are `BackendSupport` (a slot for each backend), `EstimatedRuntime` (ms by
backend, of those that take it), `SelectedBackend` and, where a backend refuses,
`ValidationMessage`; those of a function are the milliseconds of launches and switches. Constants
are inlined. The form is that of files recorded on macOS 27 with `CPU_AND_NE`
(github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6, MIT,
data/03_compile/opdispatch/ana); none with the GPU is public.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ane.gates.placement.plans import _fields as fields
from pytest_ane.gates.placement.plans._record import Device, Plan, PlannedFunction, PlannedOperation
from pytest_ane.gates.placement.plans.join import walk
from pytest_ane.gates.placement.segmenter._costs import models
from pytest_ane.mlprogram.errors import PlanError, ProgramError
from pytest_ane.mlprogram.parse import parse
from pytest_ane.mlprogram.records import Function, Operation, Ref

_BACKENDS: Mapping[str, Device] = {
    **dict.fromkeys(("bnns", "classic_cpu", "e5_minimal_cpu", "jit_call"), "CPU"),
    "ane": "ANE",
    "mps_graph": "GPU",
}
_BEGINS = re.compile(r"\s*program\s*\(")
_EDGE = re.compile(
    r"\b(Launch_[a-z]\w{0,60}_ms|Src_[a-z]\w{0,60}_ms)\s*=\s*fp64\(\s*([\w.+-]{1,40})\s*\)",
    re.ASCII,
)
_BUFFERS = frozenset({"tensor_buffer_to_tensor", "tensor_to_tensor_buffer"})
"""Inputs and outputs pass through these, which are no steps of the path. Their estimates are 0, but
for an input's on the ANE where another buffer is of int32 (`cast_f16_i8`: 0.0018 ms of 128 KiB)."""
_COPY = "_4D454D5F4F5054"
"""Ends the name of a tensor whose buffer has the program's own name."""
ESTIMATES = "EstimatedRuntime"
"""Key of an operation's `extra`: ms by backend."""
EDGES = "edges_ms"
"""Key of the plan's `extra`: ms of launches and switches by the names in the file."""


def recognises(text: str) -> bool:
    """Whether a text is a MIL program."""
    return _BEGINS.match(text) is not None


def read(text: str) -> Plan:
    """The plan of a text; `PlanError` where no backend is selected, or one is unknown."""
    if "SelectedBackend" not in text:
        raise PlanError("is a MIL program without a SelectedBackend; Core ML's analytics.mil has")
    try:
        program = parse(text, "line")
    except ProgramError as error:
        raise PlanError(str(error).rstrip(".")) from None
    functions = tuple(
        PlannedFunction(name, tuple(_operations(function)))
        for name, function in program.functions.items()
    )
    return Plan("analytics", _with_shares(functions), extra={EDGES: _edges(text)})


def path_ms(plan: Plan) -> tuple[float, float] | None:
    """Estimated ms of a plan, launches and switches included; and with all it can on the ANE.

    The file does not print what an end on the ANE costs; it is the cost model's. None where some
    operation has no estimate.
    """
    edges, placed, most = plan.extra.get(EDGES, {}), 0.0, 0.0
    for function in plan.functions:
        steps = [
            (str(op.extra.get("SelectedBackend")), op.extra.get(ESTIMATES, {}))
            for op in function.operations
        ]
        if any(name not in ms for name, ms in steps):
            return None
        placed += _cost(steps, edges)
        most += _cost([("ane" if "ane" in ms else name, ms) for name, ms in steps], edges)
    return placed, most


def _cost(path: Sequence[tuple[str, Mapping[str, float]]], edges: Mapping[str, float]) -> float:
    total, before = 0.0, ""
    for backend, ms in path:
        if backend != before:
            total += edges.get(f"Launch_{backend}_ms", 0.0)
            total += edges.get(f"Src_{before}_Dest_{backend}_ms", 0.0)
        total, before = total + ms[backend], backend
    return total + (models()["M4"].end["ane"] if before == "ane" else 0.0)


def _operations(function: Function) -> Iterator[PlannedOperation]:
    inputs = {named.name for named in function.inputs}
    outputs = {_plain(name) for name in function.block.outputs}
    for scope, operation in walk(function.block, ()):
        if operation.op in _BUFFERS:
            continue
        name = _plain(operation.name) if operation.outputs else ""
        where = f"operation {name!r}"
        selected = "".join(_strings(operation, "SelectedBackend", where))
        given = _mapping(operation, ESTIMATES, where).items()
        estimates = {by: fields.number(ms, f"{where}: {ESTIMATES}") for by, ms in given}
        messages = _mapping(operation, "ValidationMessage", where)
        support = [w for w in _strings(operation, "BackendSupport", where) if w != "unsupported"]
        why = str(messages.get("ane", ""))
        if "ane" in support:
            why = ", ".join(f"{ms:.2g} ms on {backend}" for backend, ms in estimates.items())
        told = {"SelectedBackend": selected, ESTIMATES: estimates, "ValidationMessage": messages}
        source = next(iter(operation.inputs.get("x", ())), None)
        converts = isinstance(source, Ref) and _plain(source.name) in inputs
        yield PlannedOperation(
            name, operation.op, _device(selected, where) if selected else None,
            tuple(dict.fromkeys(_device(word, where) for word in support)),
            estimates.get(selected), scope,
            boundary=operation.op == "cast" and (converts or name in outputs),
            why="" if selected == "ane" else why,
            extra=told,
        )  # fmt: skip


def _with_shares(functions: tuple[PlannedFunction, ...]) -> tuple[PlannedFunction, ...]:
    """Costs as MLComputePlan gives them: shares of the milliseconds of all operations."""
    total = sum(op.cost or 0.0 for function in functions for op in function.operations)

    def share(op: PlannedOperation) -> PlannedOperation:
        known = op.cost is not None and total
        return replace(op, cost=(op.cost or 0.0) / total if known else None)

    return tuple(replace(f, operations=tuple(map(share, f.operations))) for f in functions)


def _edges(text: str) -> dict[str, float]:
    edges: dict[str, float] = {}
    for name, digits in _EDGE.findall(text):
        try:
            ms = float.fromhex(digits) if "x" in digits else float(digits)
        except ValueError:
            raise PlanError(f"{name}: {digits!r} is no number") from None
        edges[name] = fields.number(ms, name)
    return edges


def _plain(name: str) -> str:
    return name.removesuffix(_COPY)


def _strings(operation: Operation, key: str, where: str) -> tuple[str, ...]:
    data = _data(operation, key)
    items = data if isinstance(data, tuple) else (data,)
    return tuple(fields.string(item, f"{where}: {key}") for item in items)


def _mapping(operation: Operation, key: str, where: str) -> dict[str, Any]:
    """A dictionary, which the parser gives as pairs; numbers as Python has them."""
    data = _data(operation, key)
    pairs = [pair for pair in data if isinstance(pair, tuple) and len(pair) == 2]
    if len(pairs) != len(data):
        raise PlanError(f"{where}: {key} is no dictionary")
    return {
        fields.string(name, f"{where}: {key}"): getattr(value, "tolist", lambda v=value: v)()
        for name, value in pairs
    }


def _data(operation: Operation, key: str) -> Any:
    value = operation.attributes.get(key)
    return () if value is None else value.data


def _device(backend: str, where: str) -> Device:
    if backend not in _BACKENDS:
        raise PlanError(f"{where}: {backend!r} is no backend that this version knows")
    return _BACKENDS[backend]
