"""What would bring operations back to the ANE: changed graphs, each predicted as the graph was.

A remedy is a change of the operations, and its gain the difference of two predictions. Changes that
the prediction does not confirm are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from pytest_ane.gates.placement.segmenter.model import models
from pytest_ane.gates.placement.segmenter.path import shortest
from pytest_ane.gates.placement.segmenter.predict import edge_costs, estimated, estimates
from pytest_ane.gates.placement.segmenter.records import (
    BACKENDS,
    UNIT,
    Op,
    Placed,
    Prediction,
    Tensor,
    Units,
)
from pytest_ane.gates.placement.segmenter.rewrites import Change, supported_form
from pytest_ane.gates.placement.segmenter.support import limit

AtTokens = Callable[[int], Sequence[Op] | None]
"""The graph at a T; None where its inputs do not take that."""
_MULTIPLES = 1024
"""Largest multiple of the batch that is tried."""
_TOKENS = 512
"""Largest T that is tried."""
_TRIED = 40_000
"""Operations of graphs with more work that are predicted."""
_KINDS = 6
"""Kinds of operations that an action names."""
_ISLANDS = 4
"""Kinds of islands that are tried, those of most milliseconds first."""


Kind = Literal["rewrite", "cast", "pad", "split", "together", "fuse", "batch"]


@dataclass(frozen=True)
class Remedy:
    """A change of a graph that the prediction confirms.

    Attributes:
        kind: `together` is all rewrites, casts and layouts at once.
        action: what to change, as an order.
        ops: the changed graph.
        back: how many compute operations come back to the ANE, those that leave it deducted;
            undecided ones do not count.
        segments: number of segments of the changed graph.
        multiple: how many times the work a call of the changed graph does.
        elsewhere_ms: duration of operations taken out, which still have to run.
        gain_ms: cost of the path before, less `elsewhere_ms` and the cost after by `multiple`.
    """

    kind: Kind
    action: str
    ops: tuple[Op, ...]
    back: int
    segments: int
    gain_ms: float
    multiple: int = 1
    elsewhere_ms: float = 0.0


def remedies(
    ops: Sequence[Op],
    prediction: Prediction,
    tokens: int | None = None,
    at_tokens: AtTokens | None = None,
) -> tuple[Remedy, ...]:
    """What would bring operations back, the largest gain first.

    Args:
        ops: the graph.
        prediction: its own, of a chip whose costs are known.
        tokens: its T, if it has one.
        at_tokens: the graph at another T.
    """
    on_ane = all(op.unit == "ANE" for op in prediction.operations)
    if prediction.total_ms is None or on_ane:
        return ()
    trial = _Trial(ops, prediction)
    confirmed = [*_changes(trial), *_fused(trial)]
    changed = not any(remedy.back for remedy in confirmed)
    more_work: list[Remedy] = []
    if tokens and at_tokens:
        at, length = at_tokens, tokens
        words = f"T = {tokens}"
        more_work += _more_work(
            trial, _TOKENS // length, lambda times: at(times * length), words, changed=changed
        )
    confirmed += _joined(trial)
    confirmed += more_work or _more_work(trial, _most_batch(ops), _batch(ops), changed=changed)
    return tuple(sorted(confirmed, key=lambda remedy: -remedy.gain_ms))


class _Trial:
    """Predicts changed graphs; what it knows of unchanged operations it keeps."""

    def __init__(self, ops: Sequence[Op], prediction: Prediction) -> None:
        assert prediction.total_ms is not None
        self.ops, self.prediction, self.before = ops, prediction, prediction.total_ms
        self.model = models()[prediction.chip]
        self.units: Units = prediction.units
        self._edges = edge_costs(self.units, self.model)
        self._ane = BACKENDS[self.units].index("ane")
        self._rows = dict(zip(map(id, ops), estimates(ops, self.units, self.model), strict=True))

    def off(self, *causes: str) -> list[int]:
        """Indices of operations that are off the ANE for such a cause."""
        placed = enumerate(self.prediction.operations)
        return [index for index, op in placed if op.off and op.off.cause in causes]

    def confirm(
        self,
        kind: Kind,
        action: str,
        graph: Mapping[int, Sequence[Op]],
        multiple: int = 1,
        elsewhere_ms: float = 0.0,
        copies: int = 1,
    ) -> Remedy | None:
        """A remedy, if operations come back to the ANE or segments merge, and time is saved.

        `graph` has operations by the index of the one they replace; all the others stay. Of several
        copies in a row an operation is on the ANE where it is in all, and decided as in the first.
        """
        origins = [(i, op) for i, own in enumerate(self.ops) for op in graph.get(i, (own,))]
        places = [i for i, _ in origins] * copies
        changed = tuple(op for _, op in origins) * copies
        if not estimated(changed):
            return None
        paths = shortest([self._row(op) for op in changed], self._edges, self.model.tie_ms)
        off = {i for i, at in zip(places, paths.chosen, strict=True) if at != self._ane}
        off |= {i for i, replaced in graph.items() if not replaced and kind == "fuse"}
        undecided = {
            i
            for i, through in zip(places[: len(origins)], paths.through, strict=False)
            if self._margin(through) < self.model.undecided_ms
        }
        placed = self.prediction.operations
        back = sum(_moved(op, i not in off, i in undecided) for i, op in enumerate(placed))
        units = [UNIT[BACKENDS[self.units][backend]] for backend in paths.chosen]
        switches = sum(a != b for a, b in pairwise(units))
        gain = self.before - elsewhere_ms - paths.total / multiple
        fewer = kind == "fuse" and switches < self.prediction.switches
        if gain <= self.model.tie_ms or not (back > 0 or fewer):
            return None
        segments = switches + 1 if changed else 0
        return Remedy(kind, action, changed, back, segments, gain, multiple, elsewhere_ms)

    def _margin(self, through: Sequence[float]) -> float:
        """What the best path with an operation off the ANE costs more than that with it there."""
        elsewhere = min(ms for backend, ms in enumerate(through) if backend != self._ane)
        return elsewhere - through[self._ane]

    def _row(self, op: Op) -> tuple[float, ...]:
        row = self._rows.get(id(op))
        return row if row is not None else estimates([op], self.units, self.model)[0]


def _moved(op: Placed, on_ane: bool, undecided: bool) -> int:
    """1 for one that comes to the ANE, -1 for one that leaves; undecided it does not come."""
    if op.boundary:
        return 0
    was = op.unit == "ANE"
    return int(on_ane and (was or not undecided)) - int(was)


def _changes(trial: _Trial) -> Iterator[Remedy]:
    """Each kind of unsupported operation in a form that the ANE takes; then all of them at once."""
    groups: dict[str, list[tuple[int, Change]]] = {}
    for index in trial.off("unsupported"):
        if change := supported_form(trial.ops[index]):
            groups.setdefault(change.how, []).append((index, change))
    confirmed = []
    for members in groups.values():
        change = members[0][1]
        graph = {index: member.ops for index, member in members}
        action = change.order(_counted(trial.ops[index].kind for index, _ in members))
        if remedy := trial.confirm(change.kind, action, graph):
            confirmed.append(remedy)
    yield from confirmed
    if len(groups) > 1:
        everything = {i: change.ops for members in groups.values() for i, change in members}
        kinds = _counted(trial.ops[index].kind for index in everything)
        action = f"bring all of these into forms that the ANE takes: {kinds}"
        remedy = trial.confirm("together", action, everything)
        if remedy and all(remedy.back > alone.back for alone in confirmed):
            yield remedy


def _fused(trial: _Trial) -> Iterator[Remedy]:
    """Islands off the ANE taken out from its segments, alike ones at once."""
    segments = trial.prediction.segments
    alike: dict[tuple[str, ...], list[int]] = {}
    for position, segment in enumerate(segments):
        around = segments[max(position - 1, 0) : position + 2]
        if segment.unit != "ANE" and any(other.unit == "ANE" for other in around):
            kinds = [op.kind for op in trial.ops[segment.first : segment.last + 1]]
            alike.setdefault(tuple(sorted(kinds)), []).append(position)

    def duration(positions: Iterable[int]) -> float:
        return sum(segments[position].ms for position in positions)

    slowest = sorted(alike.items(), key=lambda item: -duration(item[1]))[:_ISLANDS]
    for names, positions in slowest:
        islands = [segments[position] for position in positions]
        removed = [i for island in islands for i in range(island.first, island.last + 1)]
        count = f"{len(islands)} islands of " if len(islands) > 1 else ""
        action = f"compute {count}{_counted(names)} before or after the program"
        graph: dict[int, Sequence[Op]] = {index: () for index in removed}
        remedy = trial.confirm("fuse", action, graph, elsewhere_ms=duration(positions))
        if remedy:
            yield remedy


def _more_work(
    trial: _Trial,
    most: int,
    larger: Callable[[int], Sequence[Op] | None],
    tokens: str = "",
    *,
    changed: bool,
) -> Iterator[Remedy]:
    """The least multiple of the work with which half of what is cheaper elsewhere is on the ANE.

    Of large graphs not the least one, but one that suffices.

    Args:
        trial: of the graph.
        most: the largest multiple that is tried.
        larger: the graph with a multiple of its work.
        tokens: the T whose multiples these are, in words; else it is a batch.
        changed: whether unsupported operations take another form too, as it alone does not help.
    """
    unsupported = [i for i in trial.off("unsupported") if changed and supported_form(trial.ops[i])]
    causes = ["too little work", "cheaper on the GPU", *(["neighbour"] if unsupported else [])]
    little = trial.off(*causes)
    forms = _counted(trial.ops[index].kind for index in unsupported)

    def at(multiple: int) -> Remedy | None:
        graph = larger(multiple)
        if graph is None or len(graph) != len(trial.ops):
            return None
        work: dict[int, Sequence[Op]] = {index: (op,) for index, op in enumerate(graph)}
        for index in unsupported:
            if change := supported_form(graph[index]):
                work[index] = change.ops
        times = f"{multiple} times {tokens}" if tokens else f"a batch {multiple} times as large"
        action = f"call it with {times}"
        if forms:
            action += f", and bring {forms} into forms that the ANE takes"
        remedy = trial.confirm("together" if forms else "batch", action, work, multiple)
        return remedy if remedy and 2 * remedy.back >= len(little) else None

    if little and (remedy := _least(at, most, _TRIED // len(trial.ops))):
        yield remedy


def _least(at: Callable[[int], Remedy | None], most: int, tries: int) -> Remedy | None:
    """The remedy of the least multiple up to `most` that has one, if larger ones have one too.

    Fewer tries find one that is larger; what has no remedy at `most` may have one at a part of it.
    """
    least, confirmed = 1, None
    while most > 1 and tries >= 0 and not (confirmed := at(most)):
        most, tries = most // 2, tries - 1
    while confirmed and tries > 0 and most - least > 1:
        middle, tries = round(math.sqrt(least * most)), tries - 1
        if remedy := at(middle):
            most, confirmed = middle, remedy
        else:
            least = middle
    return confirmed


def _joined(trial: _Trial) -> Iterator[Remedy]:
    """Several programs like this one in a row, where its own work is too little for a launch."""
    little = trial.off("too little work", "cheaper on the GPU")

    def at(count: int) -> Remedy | None:
        action = f"fuse {count:,} programs like this one into one"
        remedy = trial.confirm("fuse", action, {}, count, copies=count)
        return remedy if remedy and 2 * remedy.back >= len(little) else None

    if not little or len(trial.prediction.segments) > 1:
        return
    counts = (2**power for power in range(1, 7))
    few = (count for count in counts if count * len(trial.ops) <= _TRIED)
    enough = next(filter(at, few), 0)
    if remedy := _least(at, enough, 4):
        yield remedy


def _most_batch(ops: Sequence[Op]) -> int:
    """The largest multiple of all first axes that is within the ANE's limit."""
    tensors = (tensor for op in ops for tensor in (*op.inputs, *op.outputs))
    longest = max((t.shape[0] or 1 for t in tensors if t.shape and not t.constant), default=1)
    return min(_MULTIPLES, limit("axis") // longest)


def _batch(ops: Sequence[Op]) -> Callable[[int], Sequence[Op]]:
    """The graph with a multiple of the first axis of its run-time tensors; scalars stay."""

    def longer(tensor: Tensor, multiple: int) -> Tensor:
        if tensor.constant or not tensor.shape:
            return tensor
        first, *rest = tensor.shape
        return replace(tensor, shape=((first or 1) * multiple, *rest))

    def batched(op: Op, multiple: int) -> Op:
        # A weight has no batch, and in a product of matrices the second one is a weight.
        product = op.kind == "matmul" and all(len(tensor.shape) < 3 for tensor in op.inputs)
        weights = op.inputs[1:] if product else (op.weight,)
        inputs = tuple(t if t in weights else longer(t, multiple) for t in op.inputs)
        return replace(op, inputs=inputs, outputs=tuple(longer(t, multiple) for t in op.outputs))

    return lambda multiple: [batched(op, multiple) for op in ops]


def _counted(kinds: Iterable[str]) -> str:
    counts = Counter(kinds).most_common()
    others = sum(count for _, count in counts[_KINDS:])
    more = [f"{others:,} others"] if others else []
    return ", ".join([*(f"{count:,} {kind}" for kind, count in counts[:_KINDS]), *more])
