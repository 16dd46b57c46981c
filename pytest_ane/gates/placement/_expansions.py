"""What a converter wrote as many operations and is one thing: index arithmetic, unrolled layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import NamedTuple

from pytest_ane.gates.placement._graph import Graph, Site, is_constant
from pytest_ane.gates.placement.rules._ops import layer_of
from pytest_ane.gates.verdict import counted, some
from pytest_ane.mlprogram.records import Operation, Ref
from pytest_ane.mlprogram.text import printable

_NAMES = 3
_PRODUCTS = {"conv": "weight", "linear": "weight", "matmul": "y"}


class Expansion(NamedTuple):
    """Operations that a converter wrote for one thing: a statement of fact, and what to do."""

    what: str
    remedy: str = ""


def expansions(graph: Graph) -> Iterator[Expansion]:
    """What is known of a function, whose sites have been walked."""
    yield from _indices(graph)
    yield from _unrolled(graph)


def _indices(graph: Graph) -> Iterator[Expansion]:
    operations = graph.function.block.operations
    own = [op for op in operations if Site(graph, op).no_compute == "index arithmetic"]
    made = [printable(op.name) for op in own]
    if not made:
        return
    takers = frozenset().union(*(graph.index_arithmetic[id(op)] for op in own))
    kinds = Counter(op.op for op in operations if op.name in takers)
    slices = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.items())
    slices = f"{counted(kinds.total(), 'slice')} ({slices})"
    verb = "is" if len(made) == 1 else "are"
    yield Expansion(
        f"{counted(len(made), 'op')} {verb} index arithmetic of {slices}, which is no work for the "
        f"ANE: {some(made, _NAMES)}"
    )


def _unrolled(graph: Graph) -> Iterator[Expansion]:
    """Products by a weight whose input depends on the product by the same weight before them."""
    bits: dict[str, int] = {}
    behind: dict[str, int] = {}
    steps: Counter[str] = Counter()
    second: dict[str, Operation] = {}
    for op in graph.function.block.operations:
        seen = reduce(or_, (behind.get(name, 0) for name in op.reads), 0)
        for argument in op.inputs.get(_PRODUCTS.get(op.op, ""), ()):
            weight = graph.producer(argument)
            if weight and is_constant(weight.op):
                bit = bits.setdefault(weight.name, 1 << len(bits))
                steps[weight.name] += bool(seen & bit)
                if seen & bit:
                    second.setdefault(weight.name, op)
                seen |= bit
        behind.update({out.name: seen for out in op.outputs})
    # The weights of one layer's gates are applied to one hidden state.
    layers: dict[tuple[int, object], list[str]] = {}
    for name, op in second.items():
        layers.setdefault((steps[name] + 1, op.inputs.get("x")), []).append(name)
    for (count, _), names in layers.items():
        mask = sum(bits[name] for name in names)
        layer = layer_of(Counter(_between(graph, second[names[0]], behind, mask)))
        if not layer:
            continue
        yield Expansion(
            f"{layer[:1].upper()}{layer[1:]} is unrolled: {some(map(printable, names), _NAMES)} "
            f"applied {count} times, each of which waits for the one before",
            "convert one step, with the hidden state as a state or as an input and an output, and "
            "let the host loop, if the program grows too long",
        )


def _between(graph: Graph, last: Operation, behind: Mapping[str, int], mask: int) -> Iterator[str]:
    """Types of the ops from one step's products, themselves included, to those of the next."""
    pending, met = [*last.reads], set[str]()
    while pending:
        name = pending.pop()
        op = graph.producer(Ref(name))
        if op is None or name in met or not behind.get(name, 0) & mask:
            continue
        met.add(name)
        yield op.op
        pending += op.reads
