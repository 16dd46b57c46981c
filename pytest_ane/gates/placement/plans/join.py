"""A plan beside its program: types, boundary casts, and operations the plan is silent about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_ane.gates.placement.graph import Graph, Site
from pytest_ane.gates.placement.plans.record import Plan, PlannedFunction, PlannedOperation
from pytest_ane.mil.records import Block, Function, MLModel, Operation

_Scope = tuple[tuple[str, int], ...]


def join(plan: Plan, model: MLModel) -> Plan:
    """The plan with every operation of the package, in the program's order.

    Operations join by the name of any of their outputs. What the plan does not mention is there
    without a device; what the package does not have stands in `unmatched` too. A plan that names
    no operation is returned as it is, and so is one of the program that the compiler made of the
    package, which has folded, added and renamed operations; it is of another package where most of
    its operations are not in this one.
    """
    if plan.source == "analytics":
        names = {named.name for op in model.program.walk() for named in op.outputs}
        others = tuple(op.name for _, op in plan.walk() if op.name not in names)
        mostly = 2 * len(others) > sum(1 for _ in plan.walk())
        return replace(plan, unmatched=others if mostly else ())
    if plan.source == "log" or not any(one.name for _, one in plan.walk()):
        return plan
    functions: list[PlannedFunction] = []
    unmatched: list[str] = []
    planned = {function.name: function.operations for function in plan.functions}
    for name, function in model.program.functions.items():
        joined = _Joined(planned.pop(name, ()))
        functions.append(PlannedFunction(name, tuple(joined.walk(function))))
        unmatched += joined.rest()
    for name, operations in planned.items():
        functions.append(PlannedFunction(name, operations))
        unmatched += [f"{name}/{one.name}" for one in operations]
    return replace(plan, functions=tuple(functions), unmatched=tuple(unmatched))


class _Joined:
    """A function's planned operations, taken one by one by those of the program."""

    def __init__(self, planned: tuple[PlannedOperation, ...]) -> None:
        self._planned = dict(enumerate(planned))
        self._keys: dict[object, list[int]] = {}
        for index, one in reversed(self._planned.items()):
            for key in ((one.scope, one.name), one.name):
                self._keys.setdefault(key, []).append(index)

    def walk(self, function: Function) -> Iterator[PlannedOperation]:
        graph = Graph(function)
        for scope, operation in walk(function.block, ()):
            found = self._take(scope, operation) or PlannedOperation(operation.name)
            boundary = bool(Site(graph, operation).boundary)
            name = operation.name if operation.outputs else ""
            yield replace(found, name=name, op=operation.op, scope=scope, boundary=boundary)
        yield from self._planned.values()

    def rest(self) -> Iterator[str]:
        return (one.name for one in self._planned.values())

    def _take(self, scope: _Scope, operation: Operation) -> PlannedOperation | None:
        """The plan's word on an operation; entries of its other outputs go with it."""
        names = [named.name for named in operation.outputs] or [""]
        taken: PlannedOperation | None = None
        for name in names:
            for key in ((scope, name), name):
                index = self._first(key, operation)
                if index is not None:
                    one = self._planned.pop(index)
                    taken = taken or one
                    break
        return taken

    def _first(self, key: object, operation: Operation) -> int | None:
        indices = self._keys.get(key, [])
        while indices and indices[-1] not in self._planned:
            indices.pop()
        if not indices:
            return None
        one = self._planned[indices[-1]]
        return indices[-1] if one.op in (None, operation.op) else None


def walk(block: Block, scope: _Scope) -> Iterator[tuple[_Scope, Operation]]:
    """Operations in file order, each with those whose nested blocks it lies in."""
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from walk(nested, (*scope, (operation.name, index)))
