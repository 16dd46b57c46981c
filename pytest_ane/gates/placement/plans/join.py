"""A plan beside its program: types, boundary casts, and operations the plan is silent about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ane.gates.placement.graph import Graph, Site
from pytest_ane.gates.placement.plans.record import Plan, PlannedFunction, PlannedOperation
from pytest_ane.mil.records import Block, Function, MLModel, Operation, Ref

_Scope = tuple[tuple[str, int], ...]
_TARGETS = {6: "iOS 15", 7: "iOS 16", 8: "iOS 17"}
"""Deployment targets below iOS 18 by specification version (Model.proto)."""
NEVER_FOLDED = frozenset(
    {
        "conv", "conv_transpose", "linear", "matmul", "einsum", "gru", "lstm", "rnn",
        "scaled_dot_product_attention", "read_state", "write_state", "coreml_update_state",
    }
)  # fmt: skip
"""Types whose work no compiler can leave out."""


def join(plan: Plan, model: MLModel) -> Plan:
    """The plan with every operation of the package, in the program's order.

    Operations join by the name of any of their outputs, and then, where the plan says what each
    reads and writes, by type and neighbours, which finds those that the compiler renamed. Constants
    and casts that it added are counted; an operation that it folded away is there as `folded`. What
    an incomplete plan does not mention is there without a device; what the package does not have
    stands in `unmatched` too. A plan that names no operation is returned as it is, and so is one of
    the program that the compiler made of the package, which has folded, added and renamed
    operations; it is of another package where most of its operations are not in this one.
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
    added: Counter[str] = Counter(plan.added)
    renamed = plan.renamed
    planned = {function.name: function.operations for function in plan.functions}
    for name, function in model.program.functions.items():
        joined = _Joined(function, planned.pop(name, ()), complete=plan.complete)
        functions.append(PlannedFunction(name, tuple(joined.walk())))
        unmatched += joined.unmatched()
        added += joined.added
        renamed += joined.renamed
    for name, operations in planned.items():
        functions.append(PlannedFunction(name, operations))
        unmatched += [f"{name}/{one.name}" for one in operations]
    return replace(
        plan,
        functions=tuple(functions),
        unmatched=tuple(unmatched),
        added=dict(added),
        renamed=renamed,
        target=_TARGETS.get(model.specification_version, ""),
    )


class _Joined:
    """A function's operations, each with what a plan says of it.

    Attributes:
        added: constants and casts of the plan that the package does not have, by type.
        renamed: how many were joined by their neighbours.
    """

    def __init__(
        self, function: Function, planned: Sequence[PlannedOperation], *, complete: bool
    ) -> None:
        self._graph = Graph(function)
        self._operations = list(walk(function.block, ()))
        self._planned = dict(enumerate(planned))
        self._keys: dict[object, list[int]] = {}
        for index, one in reversed(self._planned.items()):
            for key in ((one.scope, one.name), one.name):
                self._keys.setdefault(key, []).append(index)
        self._pairs: dict[int, PlannedOperation] = {}
        for index, (scope, operation) in enumerate(self._operations):
            if (taken := self._take(scope, operation)) is not None:
                self._pairs[index] = taken
        self.renamed = self._join_renamed(function, planned)
        self.added: Counter[str] = Counter()
        self._take_added(function)
        self._folded = set(self._left_out()) if complete else set()

    def walk(self) -> Iterator[PlannedOperation]:
        """The package's operations, and then those of the plan that it does not have."""
        for index, (scope, operation) in enumerate(self._operations):
            unknown = PlannedOperation(operation.name, folded=index in self._folded)
            one = self._pairs.get(index, unknown)
            boundary = bool(Site(self._graph, operation).boundary)
            name = operation.name if operation.outputs else ""
            yield replace(
                one,
                name=name,
                op=operation.op,
                scope=scope,
                boundary=boundary,
                folded=one.folded and operation.op not in NEVER_FOLDED,
            )
        yield from self._planned.values()

    def unmatched(self) -> Iterator[str]:
        """Names of the plan's operations that the package does not have."""
        inner = (one for one in self._planned.values() if one.op != "cast" or one.wires is None)
        return (one.name for one in inner)

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

    def _join_renamed(self, function: Function, planned: Sequence[PlannedOperation]) -> int:
        """Join what has other names, unless that is more than has the same."""
        left = {i: one for i, one in self._planned.items() if _computes(one.op) and one.wires}
        alone = {i: op for i, op in self._compute() if i not in self._pairs}
        named = sum(i in self._pairs for i, _ in self._compute())
        if not left or not alone:
            return 0
        joined = [(self._operations[index][1], one) for index, one in self._pairs.items()]
        pairs = _Neighbours(function, planned, joined).pair(left, alone)
        if len(pairs) > named:
            return 0
        for ours, theirs in pairs.items():
            self._pairs[ours] = self._planned.pop(theirs)
        return len(pairs)

    def _compute(self) -> Iterator[tuple[int, Operation]]:
        pairs = enumerate(operation for _, operation in self._operations)
        return ((index, operation) for index, operation in pairs if _computes(operation.op))

    def _take_added(self, function: Function) -> None:
        """Count constants, and casts that run on the ANE, nowhere or at the boundary."""
        ends = {named.name for named in function.inputs} | set(function.block.outputs)
        for index, one in list(self._planned.items()):
            wired = {*one.wires.inputs, *one.wires.outputs} if one.wires else set()
            inner = one.op == "cast" and one.preferred in ("CPU", "GPU") and not wired & ends
            if one.op is not None and not _computes(one.op) and not inner:
                self.added[one.op] += 1
                del self._planned[index]

    def _left_out(self) -> Iterator[int]:
        """Operations that the compiler folded; none where that would be most of the program."""
        compute = [index for index, _ in self._compute()]
        missing = [index for index in compute if index not in self._pairs]
        if 2 * len(missing) > len(compute):
            return
        for index, (_, operation) in enumerate(self._operations):
            kind = operation.op
            ran = kind == "cast" or _computes(kind)
            if index not in self._pairs and ran and kind not in NEVER_FOLDED:
                yield index


class _Neighbours:
    """Values of the compiled program by the package's names, as far as operations are joined."""

    def __init__(
        self,
        function: Function,
        planned: Sequence[PlannedOperation],
        joined: Sequence[tuple[Operation, PlannedOperation]],
    ) -> None:
        self._function = function
        self._constants = {
            name
            for one in planned
            if one.wires and one.op and not _computes(one.op) and one.op != "cast"
            for name in one.wires.outputs
        }
        # A cast changes no value that matters here, so it is looked through on both sides.
        self._through = {
            output: one.wires.inputs[0]
            for one in planned
            if one.op == "cast" and one.wires and one.wires.inputs
            for output in one.wires.outputs
        }
        self._package: dict[str, str] = {}
        self._package_constants: set[str] = set()
        for operation in function.walk():
            if operation.op == "cast":
                self._package.update((operation.name, n) for n in _references(operation)[:1])
            elif not _computes(operation.op):
                self._package_constants |= {named.name for named in operation.outputs}
        self._known: dict[str, str] = {}
        for operation, one in joined:
            self._learn(operation, one)

    def pair(
        self, left: Mapping[int, PlannedOperation], alone: Mapping[int, Operation]
    ) -> dict[int, int]:
        """Operations of one side that have the type and the inputs of exactly one of the other."""
        pairs: dict[int, int] = {}
        while True:
            ours: dict[object, list[int]] = {}
            theirs: dict[object, list[int]] = {}
            for index, operation in alone.items():
                if index not in pairs:
                    ours.setdefault(self._key(operation), []).append(index)
            for index, one in left.items():
                key = self._planned_key(one)
                if index not in pairs.values() and key is not None:
                    theirs.setdefault(key, []).append(index)
            new = {
                ours[key][0]: indices[0]
                for key, indices in theirs.items()
                if len(indices) == len(ours.get(key, ())) == 1
            }
            if not new:
                return pairs
            pairs |= new
            for index, planned in new.items():
                self._learn(alone[index], left[planned])

    def _learn(self, operation: Operation, one: PlannedOperation) -> None:
        outputs = one.wires.outputs if one.wires else ()
        self._known |= dict(zip(outputs, (n.name for n in operation.outputs), strict=False))

    def _key(self, operation: Operation) -> object:
        names = (_followed(name, self._package) for name in _references(operation))
        return operation.op, tuple(sorted({*names} - self._package_constants))

    def _planned_key(self, one: PlannedOperation) -> object | None:
        """None where an input comes of an operation that is not joined yet."""
        assert one.wires
        ends = {named.name for named in self._function.inputs}
        names: set[str] = set()
        for name in one.wires.inputs:
            value = _followed(name, self._through)
            if value in self._constants:
                continue
            if value not in self._known and value not in ends:
                return None
            names.add(_followed(self._known.get(value, value), self._package))
        return one.op, tuple(sorted(names))


def _computes(kind: str | None) -> bool:
    return kind not in ("const", "cast") and not (kind or "").startswith("constexpr_")


def _references(operation: Operation) -> list[str]:
    arguments = (argument for values in operation.inputs.values() for argument in values)
    return [argument.name for argument in arguments if isinstance(argument, Ref)]


def _followed(name: str, steps: Mapping[str, str]) -> str:
    """The value at the beginning of a chain of casts, which has no circle in a program."""
    for _ in range(len(steps)):
        if name not in steps:
            break
        name = steps[name]
    return name


def walk(block: Block, scope: _Scope) -> Iterator[tuple[_Scope, Operation]]:
    """Operations in file order, each with those whose nested blocks it lies in."""
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from walk(nested, (*scope, (operation.name, index)))
