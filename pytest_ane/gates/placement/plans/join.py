"""A plan beside its program: types, boundary casts, silent operations; and a plan counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pytest_ane.gates.placement._graph import Graph, Site, is_constant
from pytest_ane.gates.placement.plans._record import (
    RETRIED,
    Device,
    Plan,
    PlannedFunction,
    PlannedOperation,
)
from pytest_ane.gates.verdict import counted
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.records import Block, Function, MLModel, Operation
from pytest_ane.mlprogram.text import printable

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
    and casts that it added are counted; what it folded away is there as `folded`, what an
    incomplete plan does not mention without a device, what the package does not have in `unmatched`
    too. A plan that names no operation is returned as it is, and so is one of the compiled program;
    that is of another package where most of its operations are not in this one.
    """
    if plan.source == "analytics":
        names = {named.name for op in model.program.walk() for named in op.outputs}
        others = tuple(op.name for _, op in plan.walk() if op.name not in names)
        mostly = 2 * len(others) > sum(1 for _ in plan.walk())
        return replace(plan, unmatched=others if mostly else ())
    if plan.source == "log" or not any(one.name for _, one in plan.walk()):
        return plan
    functions, unmatched = list[PlannedFunction](), list[str]()
    added, renamed = Counter(plan.added), plan.renamed
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
    version = model.specification_version
    return replace(
        plan, functions=tuple(functions), unmatched=tuple(unmatched), added=dict(added),
        renamed=renamed, version=version, target=_TARGETS.get(version, ""),
    )  # fmt: skip


class _Joined:
    """A function's operations, each with what a plan says of it.

    `added` are constants and casts that the package does not have, by type; `renamed` counts those
    joined by their neighbours.
    """

    def __init__(
        self, function: Function, planned: Sequence[PlannedOperation], *, complete: bool
    ) -> None:
        self._graph = Graph(function)
        self._operations = list(walk(function.block, ()))
        self._planned = dict(enumerate(planned))
        backwards = reversed(self._planned.items())
        self._keys: dict[object, list[int]] = grouped(
            (key, i) for i, one in backwards for key in ((one.scope, one.name), one.name)
        )
        taken = ((i, self._take(*pair)) for i, pair in enumerate(self._operations))
        self._pairs = {index: one for index, one in taken if one is not None}
        by_name = set(self._pairs)
        self.renamed = self._join_renamed(function, planned)
        self._renamed = self._pairs.keys() - by_name
        self._ends = {named.name for named in function.inputs} | set(function.block.outputs)
        self.added: Counter[str] = Counter()
        self._take_added()
        whole = complete and _is_whole(function, planned)
        self._folded = set(self._left_out()) if whole else set()

    def walk(self) -> Iterator[PlannedOperation]:
        """The package's operations, and then those of the plan that it does not have."""
        for index, (scope, operation) in enumerate(self._operations):
            unknown = PlannedOperation(operation.name, folded=index in self._folded)
            one = self._pairs.get(index, unknown)
            role = Site(self._graph, operation).no_compute
            at_end = index not in self._renamed and self._touches_ends(one)
            boundary = role == "index arithmetic" or (at_end and bool(role))
            name = operation.name if operation.outputs else ""
            folded = one.folded and not one.preferred and operation.op not in NEVER_FOLDED
            named = replace(one, name=name, op=operation.op, scope=scope)
            yield replace(named, boundary=boundary, folded=folded)
        yield from self._planned.values()

    def _touches_ends(self, one: PlannedOperation) -> bool:
        """Whether the compiled operation may be at the function's boundary, as far as is told."""
        return one.wires is None or bool({*one.wires.inputs, *one.wires.outputs} & self._ends)

    def unmatched(self) -> Iterator[str]:
        left = self._planned.values()
        return (one.name for one in left if one.op != "cast" or one.wires is None)

    def _take(self, scope: _Scope, operation: Operation) -> PlannedOperation | None:
        """The plan's word on an operation; entries of its other outputs go with it."""
        taken: PlannedOperation | None = None
        for name in [named.name for named in operation.outputs] or [""]:
            for key in ((scope, name), name):
                if (index := self._first(key, operation)) is None:
                    continue
                one = self._planned[index]
                # What says otherwise, or of other values, is another operation: it stays.
                if taken is None or (one.preferred, one.wires) == (taken.preferred, taken.wires):
                    taken = taken or self._planned.pop(index)
                    self._planned.pop(index, None)
                    break
        return taken

    def _first(self, key: object, operation: Operation) -> int | None:
        indices = self._keys.get(key, [])
        while indices and indices[-1] not in self._planned:
            indices.pop()
        if not indices:
            return None
        return indices[-1] if self._planned[indices[-1]].op in (None, operation.op) else None

    def _join_renamed(self, function: Function, planned: Sequence[PlannedOperation]) -> int:
        """Join what has other names, unless that is more than has the same."""
        if not any(_computes(one.op) and one.wires for one in self._planned.values()):
            return 0
        ours = _nodes(
            (index, op.op, [*op.reads], [named.name for named in op.outputs])
            for index, (_, op) in enumerate(self._operations)
        )
        theirs = _nodes(
            (index, one.op, one.wires.inputs, one.wires.outputs)
            for index, one in enumerate(planned)
            if one.wires and one.op
        )
        indices = {id(one): index for index, one in enumerate(planned)}
        named = {i: indices[id(one)] for i, one in self._pairs.items() if i in ours}
        pairs = _neighbours(ours, theirs, named, [named.name for named in function.inputs])
        if len(pairs) > len(named):
            return 0
        self._pairs |= {index: self._planned.pop(other) for index, other in pairs.items()}
        return len(pairs)

    def _take_added(self) -> None:
        """Count constants, and casts that run on the ANE, nowhere or at the boundary."""
        for index, one in list(self._planned.items()):
            at_end = one.wires is not None and self._touches_ends(one)
            inner = one.op == "cast" and one.preferred in ("CPU", "GPU") and not at_end
            if one.op is not None and not _computes(one.op) and not inner:
                self.added[one.op] += 1
                del self._planned[index]

    def _left_out(self) -> Iterator[int]:
        """Operations that the compiler folded; none where that would be most of the program."""
        compute = [i for i, (_, op) in enumerate(self._operations) if _computes(op.op)]
        missing = [i for i in compute if i not in self._pairs]
        if 2 * len(missing) <= len(compute):
            for index, (_, operation) in enumerate(self._operations):
                ran = operation.op == "cast" or _computes(operation.op)
                if index not in self._pairs and ran and operation.op not in NEVER_FOLDED:
                    yield index


@dataclass(frozen=True)
class _Node:
    """An op of either program: its type, the values it reads, constants apart, and writes.

    A cast is looked through: what reads its output reads its input.
    """

    op: str
    reads: frozenset[str]
    writes: tuple[str, ...]


_Nodes = Mapping[int, _Node]


def _neighbours(
    ours: _Nodes, theirs: _Nodes, joined: Mapping[int, int], inputs: Iterable[str]
) -> dict[int, int]:
    """Ops of one type that alone have the same inputs, or the same consumers, by index.

    `ours` are those of the package, `theirs` of the compiled program, `joined` the same by name;
    the function's `inputs` have the same names in both.
    """
    pairs: dict[int, int] = {}
    values = {name: name for name in inputs}
    readers = [
        grouped((name, index) for index, node in nodes.items() for name in node.reads)
        for nodes in (ours, theirs)
    ]

    def learn(index: int, other: int) -> None:
        pairs[index] = other
        values.update(zip(theirs[other].writes, ours[index].writes, strict=False))

    def reads(node: _Node, side: int) -> object:
        """None where an input comes of an op that is not joined yet."""
        names = {values.get(name) if side else name for name in node.reads}
        return None if None in names else (node.op, frozenset(names))

    def consumers(node: _Node, side: int) -> object:
        """None where there are none, or one is not joined yet."""
        known = {pair[side]: pair[0] for pair in pairs.items()}
        found = {known.get(i) for name in node.writes for i in readers[side].get(name, ())}
        return (node.op, frozenset(found)) if found and None not in found else None

    def pair_by(key: Callable[[_Node, int], object]) -> bool:
        sides = []
        for side, nodes in enumerate((ours, theirs)):
            left = nodes.keys() - {pair[side] for pair in pairs.items()}
            sides.append(grouped((key(nodes[index], side), index) for index in left))
        alike = [[side[k] for side in sides] for k in sides[0].keys() & sides[1].keys() - {None}]
        new = [(a[0], b[0]) for a, b in alike if len(a) == len(b) == 1]
        for index, other in new:
            learn(index, other)
        return bool(new)

    for index, other in joined.items():
        learn(index, other)
    while any(map(pair_by, (reads, consumers))):
        pass
    return {index: other for index, other in pairs.items() if index not in joined}


def _is_whole(function: Function, planned: Sequence[PlannedOperation]) -> bool:
    """Whether all that a listed program reads and gives is written in it, as far as is told."""
    wires = [one.wires for one in planned if one.wires]
    known = {name for one in wires for name in one.outputs}
    known |= {named.name for named in function.inputs}
    asked = {name for one in wires for name in one.inputs} | set(function.block.outputs)
    return len(wires) < len(planned) or asked <= known


def _nodes(ops: Iterable[tuple[int, str, Sequence[str], Sequence[str]]]) -> dict[int, _Node]:
    """Ops that compute, of index, type, names that are read and names that are written."""
    nodes: dict[int, _Node] = {}
    behind: dict[str, str] = {}
    constants: set[str] = set()
    for index, kind, reads, writes in ops:
        values = [behind.get(name, name) for name in reads if name not in constants]
        if kind == "cast" and values:
            behind.update(dict.fromkeys(writes, values[0]))
        elif _computes(kind):
            nodes[index] = _Node(kind, frozenset(values), tuple(writes))
        else:
            constants.update(writes)
    return nodes


def _computes(kind: str | None) -> bool:
    return kind != "cast" and not is_constant(kind or "")


def walk(block: Block, scope: _Scope) -> Iterator[tuple[_Scope, Operation]]:
    """Operations in file order, each with those whose nested blocks it lies in."""
    for operation in block.operations:
        yield scope, operation
        for index, nested in enumerate(operation.blocks):
            yield from walk(nested, (*scope, (operation.name, index)))


Outcome = Literal["resident", "not resident", "inconclusive"]
plain = partial(printable, longest=200)


@dataclass(frozen=True)
class Summary:
    """What a plan comes to.

    Attributes:
        devices: compute ops by preferred device.
        elsewhere: compute ops that are counted as not on the ANE, on a device not told.
        conv_ane, conv_total: convolutions; `None` where the source tells no types.
        compile_time: `const` and `constexpr_*`, which have no device, by type.
        folded: compute ops that the compiler left out.
        added: ops that it added, by type.
        boundary_casts: casts of a function's inputs and outputs, image scaling, `classify`, and
            index arithmetic.
        off: compute ops that are not on the ANE, those without a device included.
        outcome: `resident` only if every compute op prefers the ANE.
        inconclusive: why it proves nothing, and what to do; None where it does.
    """

    devices: Mapping[Device, int]
    elsewhere: int
    conv_ane: int | None
    conv_total: int | None
    compile_time: Mapping[str, int]
    folded: int
    added: Mapping[str, int]
    renamed: int
    boundary_casts: int
    off: tuple[tuple[str, PlannedOperation], ...]
    outcome: Outcome
    inconclusive: tuple[str, str] | None

    @property
    def unassigned(self) -> int:
        """Compute ops without a device."""
        return sum(operation.preferred is None for _, operation in self.off)

    @property
    def compute(self) -> int:
        """Compute ops, with a device or without."""
        return sum(self.devices.values()) + self.elsewhere + self.unassigned


def summarise(plan: Plan) -> Summary:
    """Count a plan; only preferred devices are placement, eligibility is not looked at."""
    operations = [*plan.walk()]
    run = [each for each in operations if not (each[1].compile_time or each[1].boundary)]
    compute = [each for each in run if not each[1].folded]
    devices = Counter(op.preferred for _, op in compute if op.preferred)
    convs = Counter(op.preferred == "ANE" for _, op in compute if op.op == "conv")
    elsewhere = 0
    for tally in plan.tallies:
        if tally.op is None:
            devices["ANE"] += tally.ane
            elsewhere += tally.total - tally.ane
        elif tally.op == "conv":
            convs[True] += tally.ane
            convs[False] += tally.total - tally.ane
    kinds = [*(op.op for _, op in operations), *(tally.op for tally in plan.tallies)]
    typed = any(kind is not None for kind in kinds)
    off = tuple(each for each in compute if each[1].preferred != "ANE")
    lost = [op for _, op in off if op.preferred is None]
    inconclusive = _inconclusive(plan, sum(devices.values()) + elsewhere, lost)
    outcome: Outcome = "not resident" if elsewhere or off else "resident"
    compile_time = Counter(str(op.op) for _, op in operations if op.compile_time)
    return Summary(
        devices=dict(devices), elsewhere=elsewhere,
        conv_ane=convs[True] if typed else None, conv_total=convs.total() if typed else None,
        compile_time=dict(compile_time.most_common()), folded=len(run) - len(compute),
        added=plan.added, renamed=plan.renamed,
        boundary_casts=sum(op.boundary and not op.compile_time for _, op in operations), off=off,
        outcome="inconclusive" if inconclusive else outcome, inconclusive=inconclusive,
    )  # fmt: skip


def _inconclusive(
    plan: Plan, assigned: int, lost: list[PlannedOperation]
) -> tuple[str, str] | None:
    untyped = sum(operation.op is None for operation in lost)
    restart = "restart the Mac and ask again"
    if plan.source == "log":
        return "A log does not say where operations run", "record a compute plan"
    if failed := next((message for message in plan.messages if message.failure), None):
        meaning = plain(failed.meaning).rstrip(".")
        return f"The file records a failure on line {failed.line}: {meaning}", ""
    if plan.unmatched:
        first = f"not in the package, `{plain(plan.unmatched[0])}` first"
        remedy = "give the .mlmodelc the plan was made of, or record the plan again"
        return f"{counted(len(plan.unmatched), 'operation')} of the plan {first}", remedy
    if not assigned and lost:
        reason = "No operation has a device"
        if plan.target:
            why = (
                f"the program is for {plan.target}, and reports say that none below iOS 18 has one"
            )
            remedy = "convert it with minimum_deployment_target=ct.target.iOS18; if it is the same"
            remedy = f"{remedy} then, Core ML's caches are broken: {restart}"
            return f"{reason}: {why}", remedy
        if plan.extra.get(RETRIED) is True:
            return f"{reason}, nor in a copy at another path: Core ML's caches are broken", restart
        remedy = "copy the compiled model to another path and record the plan again"
        return f"{reason}: that is a broken cache, no placement", remedy
    if not assigned:
        return "The plan places no compute op", "record it again"
    if untyped:
        lack = "without a device, of unknown type: constants are among such"
        return f"{counted(untyped, 'operation')} {lack}", "give --package"
    if not plan.tallies and all(operation.op is None for _, operation in plan.walk()):
        reason = "The plan names neither types nor what it leaves out: an operation without a"
        return f"{reason} device would go unseen", "give --package"
    return None
