"""The forecast: which ops of a program the documented rules keep off the Neural Engine.

Where an op really runs only a plan recorded on a Mac can say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, reduce
from math import prod
from operator import or_
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy.typing as npt

from pytest_ane.gates.placement._graph import Graph, Site, is_constant
from pytest_ane.gates.placement.rules import OP_RULES, PROGRAM_RULES, Outcome, find
from pytest_ane.gates.placement.rules._ops import LAYER, layer_of, mil_ops
from pytest_ane.gates.placement.rules._shapes import SIZE_RULE, too_large
from pytest_ane.gates.placement.segmenter import Predicted, flops
from pytest_ane.gates.verdict import counted, some
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.records import Blob, MLModel, Operation, Ref, TensorType, Value
from pytest_ane.mlprogram.text import printable

_plain = partial(printable, longest=300)
Key: TypeAlias = tuple[str, str]
"""Function and operation."""
Work: TypeAlias = tuple[Mapping[Key, float], ...]
"""Estimated floating-point operations, for each function and T that was predicted."""
_READ_AT_MOST = 2**24
_NAMES = 3
_PRODUCTS = {"conv": "weight", "linear": "weight", "matmul": "y"}


class Expansion(NamedTuple):
    """Operations that a converter wrote for one thing: a statement of fact, and what to do."""

    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Match:
    """A rule that applies to an operation, or to the whole program.

    Attributes:
        rule: the rule's id, such as `R064`.
        outcome: `ineligible` or `warned`; `allowed` of an ineligible one that a policy allows.
        op: the operation's name (its first output); or the input's, the state's, the package's.
        type: the operation's type; or `input`, `state`, `package`.
        why: one sentence on this very operation.
        function: the function it stands in; empty for the whole program.
        index: its place among the program's operations, from 0; `None` for the whole program.
    """

    rule: str
    outcome: Outcome | Literal["allowed"]
    op: str
    type: str
    why: str
    function: str = ""
    index: int | None = None


@dataclass(frozen=True)
class ComputeOp:
    """An operation that the rules were asked about; fields as of a `Match`.

    `inside` is the place of the outermost ineligible control flow it lies in; `None` for none.
    """

    name: str
    type: str
    function: str
    index: int
    inside: int | None = None


@dataclass(frozen=True)
class Forecast:
    """A placement measurement made from rules alone.

    Attributes:
        size_bytes: size of the artifact on disk; which size is too large depends on the system.
        compute: how many compute operations of each type the rules were asked about.
        left_out: how many operations were not: `const`, `constexpr_*`, and `Site.no_compute`.
        matches: the rules that apply, in program order, the whole program's first.
        ops: the compute operations, in program order.
        predictions: where Core ML's cost model puts them, the weakest first.
        work: estimated work of operations, as of `estimated_work`.
        expansions: what a converter wrote as several operations, and is told as one thing.
        version: Core ML's specification version of the artifact; 0 where it is not known.
    """

    size_bytes: int
    compute: Mapping[str, int]
    left_out: Mapping[str, int]
    matches: tuple[Match, ...] = ()
    ops: tuple[ComputeOp, ...] = ()
    predictions: tuple[Predicted, ...] = ()
    work: Work = ()
    expansions: tuple[Expansion, ...] = ()
    version: int = 0

    @property
    def outcome(self) -> Literal["ineligible", "eligible", "unproven"]:
        """`ineligible` if any rule says so; `unproven` where there was no op to ask about.

        The size rule takes part once `under` has applied it.
        """
        if any(self.of("ineligible")):
            return "ineligible"
        return "eligible" if self.compute_ops else "unproven"

    @property
    def compute_ops(self) -> int:
        """Number of compute operations."""
        return sum(self.compute.values())

    def of(self, outcome: Outcome | Literal["allowed"]) -> Iterator[Match]:
        """The matches of one outcome."""
        return (match for match in self.matches if match.outcome == outcome)

    def ineligible(self, op: str | None = None) -> int:
        """Number of ineligible compute operations, of a type or all; a whole program's are all."""
        if any(match.index is None for match in self.of("ineligible")):
            return self.compute_ops if op is None else self.compute.get(op, 0)
        lost = {(each.index, each.type) for each in self.lost()}
        places = lost | {(f.index, f.type) for f in self.of("ineligible")}
        return sum(op in (None, kind) for _, kind in places)

    def allowed(self) -> int:
        """Number of compute operations that would be ineligible, and are allowed off the ANE."""
        return len({match.index for match in self.of("allowed")})

    def warned(self) -> int:
        """Number of compute operations that are eligible but warned of."""
        off = {match.index for match in (*self.of("ineligible"), *self.of("allowed"))}
        return len({f.index for f in self.of("warned") if f.index is not None} - off)

    def eligible(self, op: str) -> int:
        """Number of operations of a type that no rule keeps off, warned ones included."""
        return self.compute.get(op, 0) - self.ineligible(op)

    def allowing(self, patterns: Sequence[str]) -> Forecast:
        """The forecast with operations allowed off the ANE by name or type."""
        return self._allowing(lambda match: allows(patterns, match.op, match.type))

    def _allowing(self, fine: Callable[[Match], bool]) -> Forecast:
        matches = (
            replace(match, outcome="allowed")
            if match.outcome == "ineligible" and match.index is not None and fine(match)
            else match
            for match in self.matches
        )
        return replace(self, matches=tuple(matches))

    def lost(self) -> list[ComputeOp]:
        """Compute operations off the ANE that nothing allows, those in control flow included."""
        off = {match.index for match in self.of("ineligible")}
        return [op for op in self.ops if off & {op.index, op.inside}]

    def excusing(self, excused: Collection[Key]) -> Forecast:
        """The forecast with operations allowed off the ANE that do little, by function and name.

        Control flow goes with all that lies in it; a rule that costs more than the operation stays.
        """
        lost = self.lost()
        fine = {op.index for op in lost if (op.function, op.name) in excused}
        fine -= {op.inside for op in lost if op.index not in fine}

        def small(match: Match) -> bool:
            rule = find(match.rule, "ineligible")
            return match.index in fine and rule is not None and not rule.whole

        return self._allowing(small)

    def under(self, os: str) -> Forecast:
        """With the size rule of a system (`macOS 26`); `ManifestError` where `os` names none."""
        why = too_large(self.size_bytes, os)
        if why is None:
            return self
        match = Match(SIZE_RULE.id, SIZE_RULE.outcome, "the artifact", "package", why)
        return replace(self, matches=(match, *self.matches))


def allows(patterns: Sequence[str], name: str, kind: str) -> bool:
    """Whether one of the patterns of `allow-off` is of an operation, by its name or type."""
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in (name, kind))


def forecast(model: MLModel, *, size_bytes: int) -> Forecast:
    """Apply every rule to every operation of a program, in all functions and nested blocks.

    Of a package read without weights, R052 sees immediate constants only.
    """
    compute: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    matches = [
        Match(rule.id, rule.outcome, _plain(subject.name), subject.kind, _plain(subject.why))
        for rule in PROGRAM_RULES
        for subject in rule.why(model)
    ]
    read = partial(_read, model)
    index, ops, expanded = 0, list[ComputeOp](), list[Expansion]()
    for function in model.program.functions.values():
        graph, flow, layers = Graph(function, read), dict[int, int](), set[int | None]()
        for site in graph.sites():
            inside = flow.get(id(site.operation))
            compile_time = is_constant(site.op) and site.op in mil_ops()
            if kind := site.op if compile_time else site.no_compute:
                left_out[kind] += 1
            else:
                name, kind = _plain(site.operation.name), _plain(site.op)
                ops.append(op := ComputeOp(name, kind, _plain(function.name), index, inside))
                compute[op.type] += 1
                found = [*_matches(site, op)]
                # A layer that was written as a loop is told as one, and not by its pieces.
                if layer := [match for match in found if match.rule == LAYER]:
                    layers.add(index)
                matches += [] if inside in layers else layer or found
                if inside is None and any(match.outcome == "ineligible" for match in found):
                    inside = index
                if inside is not None:
                    blocks = site.operation.blocks
                    flow |= {id(o): inside for block in blocks for o in block.operations}
            index += 1
        expanded += expansions(graph)
    asked, rest = (dict(count.most_common()) for count in (compute, left_out))
    return Forecast(
        size_bytes, asked, rest, tuple(matches), tuple(ops), version=model.specification_version,
        expansions=tuple(dict.fromkeys(expanded)),
    )  # fmt: skip


def estimated_work(predictions: Sequence[Predicted]) -> Work:
    """Floating-point operations of what was predicted, by function and name of an operation."""
    work = []
    for predicted in predictions:
        amounts = defaultdict[Key, float](float)
        for op in predicted.ops:
            amounts[_plain(predicted.function), _plain(op.name)] += flops(op)
        work.append(amounts)
    return tuple(work)


def _matches(site: Site, op: ComputeOp) -> Iterator[Match]:
    for rule in OP_RULES:
        why = rule.apply(site)
        if why is None:
            continue
        if rule.outcome == "ineligible":
            site.graph.ineligible.update(named.name for named in site.operation.outputs)
        yield Match(rule.id, rule.outcome, op.name, op.type, _plain(why), op.function, op.index)


def _read(model: MLModel, value: Value) -> npt.NDArray[Any] | None:
    """A constant's elements; `None` where they are too many, or no longer on disk."""
    kind = value.type if isinstance(value.data, Blob) else None
    if not isinstance(kind, TensorType) or prod(d or 0 for d in kind.shape) > _READ_AT_MOST:
        return None
    with suppress(ProgramError):
        return load(model, value)
    return None


def expansions(graph: Graph) -> Iterator[Expansion]:
    """Index arithmetic and unrolled layers of a function, whose sites have been walked."""
    operations = graph.function.block.operations
    own = [op for op in operations if Site(graph, op).no_compute == "index arithmetic"]
    if own:
        takers = {name for op in own for name in graph.index_arithmetic[id(op)]}
        kinds = Counter(op.op for op in operations if op.name in takers)
        slices = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.items())
        yield Expansion(
            f"{counted(len(own), 'op')} {'is' if len(own) == 1 else 'are'} index arithmetic of "
            f"{counted(kinds.total(), 'slice')} ({slices}), which is no work for the ANE: "
            f"{some((printable(op.name) for op in own), _NAMES)}"
        )
    yield from _unrolled(graph)


def _unrolled(graph: Graph) -> Iterator[Expansion]:
    """Products by a weight whose input depends on the product by the same weight before them."""
    bits: dict[str, int] = {}
    behind: dict[str, int] = {}
    again: dict[str, list[Operation]] = {}
    for op in graph.function.block.operations:
        seen = reduce(or_, (behind.get(name, 0) for name in op.reads), 0)
        for argument in op.inputs.get(_PRODUCTS.get(op.op, ""), ()):
            weight = graph.producer(argument)
            if weight and is_constant(weight.op):
                bit = bits.setdefault(weight.name, 1 << len(bits))
                if seen & bit:
                    again.setdefault(weight.name, []).append(op)
                seen |= bit
        behind.update({out.name: seen for out in op.outputs})
    # The weights of one layer's gates are applied to one hidden state.
    layers = grouped(((len(o) + 1, o[0].inputs.get("x")), name) for name, o in again.items())
    for (count, _), names in layers.items():
        mask = sum(bits[name] for name in names)
        if layer := layer_of(Counter(_between(graph, again[names[0]][0], behind, mask))):
            yield Expansion(
                f"{layer[:1].upper()}{layer[1:]} is unrolled: {some(map(printable, names), _NAMES)}"
                f" applied {count} times, each of which waits for the one before",
                "convert one step, with the hidden state as a state or as an input and an output, "
                "and let the host loop, if the program grows too long",
            )


def _between(graph: Graph, last: Operation, behind: Mapping[str, int], mask: int) -> Iterator[str]:
    """Types of the ops from one step's products, themselves included, to those of the next."""
    pending, met = [*last.reads], set[str]()
    while pending:
        name = pending.pop()
        op = graph.producer(Ref(name))
        if op and name not in met and behind.get(name, 0) & mask:
            met.add(name)
            yield op.op
            pending += op.reads
