"""Predicted placement: which operations Core ML will send to the ANE, by its own cost model.

The prediction is the shortest path over a chain of operations, whose states are (operation,
backend). A path costs the estimates of its states, a launch where it enters a backend, a switch at
each change of backend, and an end for the backend of its last operation.

A prediction names chip and system. It is never a measurement: only a plan can say `resident`.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import add
from types import MappingProxyType
from typing import NamedTuple

from pytest_ane.gates.placement._graph import EXTENT_PARAMETERS, Depends, Graph, Site
from pytest_ane.gates.placement.segmenter._costs import (
    BACKENDS,
    MOVES,
    UNIT,
    CostModel,
    NoData,
    Off,
    Op,
    Placed,
    Predicted,
    Prediction,
    Segment,
    Tensor,
    Unit,
    Units,
    Work,
    chip_named,
    flops,
    is_measured,
    launch_bounds,
    milliseconds,
    models,
    obstacle,
    rates_of,
)
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.executor.shapes import token_range, value_shapes
from pytest_ane.mlprogram.records import Argument, Function, MLModel, Ref, TensorType

__all__ = [
    "MOVES", "Off", "Op", "Placed", "Predicted", "Prediction", "Segment", "Tensor", "flops",
    "predict", "predict_model",
]  # fmt: skip
Row = Sequence[float]


class Edges(NamedTuple):
    """Milliseconds by backend: entering it first, changing to it, ending on it."""

    launch: Row
    switch: Row
    end: Row


class Paths(NamedTuple):
    """Best paths of a chain.

    Attributes:
        total: cost of the best path, in ms; infinite where no backend takes an operation.
        through: per operation and backend, cost of the best path with it there.
        chosen: a best path, backends by operation; where several are best it stays on a backend
            as long as it can, and starts with the first of them.
    """

    total: float
    through: tuple[tuple[float, ...], ...]
    chosen: tuple[int, ...]


def shortest(costs: Sequence[Row], edges: Edges, tie: float) -> Paths:
    """Best paths in time linear in the operations.

    In ms: costs `[operations, backends]`, infinite where a backend does not take one; launches,
    switches and ends; and up to what two paths cost the same.
    """
    if not costs:
        return Paths(0.0, (), ())
    # Entering a backend costs the same from any other; staying is free.
    enter = list(map(add, edges.launch, edges.switch))
    before = [list(map(add, edges.launch, costs[0]))]
    for row in costs[1:]:
        least = min(before[-1])
        each = zip(before[-1], enter, row, strict=True)
        before.append([min(ms, least + entry) + cost for ms, entry, cost in each])
    after = [list(edges.end)]
    for row in reversed(costs[1:]):
        onward = list(map(add, after[-1], row))
        least = min(map(add, onward, enter))
        after.append([min(ms, least) for ms in onward])
    after.reverse()
    through = tuple(tuple(map(add, *row)) for row in zip(before, after, strict=True))
    total = min(through[0])
    if math.isinf(total):
        return Paths(total, through, ())
    backends = range(len(enter))
    chosen = [next(b for b in backends if through[0][b] <= total + tie)]
    for row, onward in zip(costs[1:], after[1:], strict=True):
        current = chosen[-1]
        options = [row[b] + onward[b] + (b != current) * enter[b] for b in backends]
        least = min(options)
        stays = options[current] <= least + tie
        chosen.append(current if stays else options.index(least))
    return Paths(total, through, tuple(chosen))


_RUN_TIME = frozenset({"non_zero", "range_1d"})
"""Operations whose result has a shape known only at run time."""
_LARGE = 2**18
"""Elements of the smallest operation that other plans have on the ANE, a transpose of 512 x 512."""

_ASSUMED: Mapping[NoData, str] = {
    "compressed weights": "counted as if uncompressed",
    "flexible shapes": "each shape is predicted as if fixed",
    "nested blocks": "counted as if in line",
    "several functions": "each is predicted as if alone",
    "states": "counted as other tensors",
}


def predict(
    ops: Sequence[Op], units: Units = "CPU_AND_NE", chip: str = "M4", no_data: Sequence[NoData] = ()
) -> Prediction:
    """Core ML's placement of a chain of operations, by its cost model.

    Of any chip but `M4` (macOS 27) and `M4 Pro` (macOS 26.5.1) only support is told, and whether
    work is large or small. `ops` are in file order, constants left out; `no_data` are properties of
    the program that no public plan has. `ManifestError` of an unknown chip.
    """
    model = models().get(chip := chip_named(chip))
    if model is None:
        return _without_costs(ops, units, chip, no_data)
    missing = (*_missing(ops, no_data), *_assumed_rates(ops, units, model))
    of = (model.chip, model.system, units)
    if not estimated(ops):
        # All on the CPU where values decide a shape; nothing is known of a flexible input's.
        unit: Unit | None = "CPU" if any(map(_by_values, ops)) else None
        unplaced = tuple(_unplaced(op, obstacle(op, "ane"), unit) for op in ops)
        return Prediction(*of, unplaced, (), None, None, missing)
    costs = estimates(ops, units, model)
    edges = edge_costs(units, model)
    paths = shortest(costs, edges, model.tie_ms)
    off = _reasons(ops, costs, paths, units, model)
    # Plans of others contradict these places.
    if large := {op.kind for op, why in zip(ops, off, strict=True) if is_contradicted(op, why)}:
        as_large = f"operations as large as {', '.join(sorted(large))} here on the ANE"
        missing += (f"Other public plans have {as_large}, where the costs say CPU.",)
    on, placed = [UNIT[backend] for backend in BACKENDS[units]], list[Placed]()
    for i, (op, chosen) in enumerate(zip(ops, paths.chosen, strict=True)):
        others = [ms for unit, ms in zip(on, paths.through[i], strict=True) if unit != on[chosen]]
        margin = least if (least := min(others) - paths.total) > model.tie_ms else 0.0
        known, undecided = None if math.isinf(margin) else margin, margin < model.undecided_ms
        where = on[chosen], costs[i][chosen], known, undecided, off[i]
        placed.append(Placed(op.name, op.kind, *where, op.boundary))
    ane = BACKENDS[units].index("ane")
    barred = [(*row[:ane], math.inf, *row[ane + 1 :]) for row in costs]
    without = shortest(barred, edges, model.tie_ms).total
    segments = tuple(_segments(placed))
    return Prediction(*of, tuple(placed), segments, paths.total, without, missing)


def estimated(ops: Sequence[Op]) -> bool:
    """Whether Core ML estimates costs: not where shapes are known only at run time."""
    return all(op.known and not _by_values(op) for op in ops)


def estimates(ops: Sequence[Op], units: Units, model: CostModel) -> list[tuple[float, ...]]:
    """Milliseconds `[operations, backends]`; infinite where a backend does not take one."""
    return [
        tuple(
            math.inf if obstacle(op, backend) else milliseconds(op, backend, model)
            for backend in BACKENDS[units]
        )
        for op in ops
    ]


def edge_costs(units: Units, model: CostModel) -> Edges:
    """Launches, switches and ends of the backends of some compute units."""
    edges = (model.launch, model.switch, model.end)
    return Edges(*([edge[backend] for backend in BACKENDS[units]] for edge in edges))


def _missing(ops: Sequence[Op], program: Sequence[NoData]) -> Iterator[str]:
    """Sentences on what a prediction of these operations rests on without data."""
    if not estimated(ops):
        yield (
            "Some shapes are known only at run time, and Core ML makes no estimates of such a "
            "program; in the public plans of three all operations were on the CPU."
        )
    for feature in sorted({feature for op in ops for feature in op.no_data} | {*program}):
        yield f"No public plan has {feature}; {_ASSUMED[feature]}."
    if unmeasured := sorted({op.kind for op in ops if not is_measured(op)}):
        yield f"No public plan has {', '.join(unmeasured)}; support and the default cost assumed."


def _assumed_rates(ops: Sequence[Op], units: Units, model: CostModel) -> Iterator[str]:
    scarce = {name for name, rate in model.rates.items() if rate.certainty == "one point"}
    if single := sorted({rate for op in ops for rate in rates_of(op, model) & scarce}):
        yield f"The cost of {', '.join(single)} is from one recorded operation."
    if model.chip != "M4":
        yield f"The CPU's rates on {model.chip} are those of M4."
    if units == "ALL":
        yield "The GPU's rates for convolutions, linear layers and gather are assumed."


def _by_values(op: Op) -> bool:
    return op.kind in _RUN_TIME or bool(op.flag("runtime_begin"))


def _unplaced(op: Op, limit: str, unit: Unit | None = None, work: Work | None = None) -> Placed:
    off = Off("unsupported", limit) if limit else None
    return Placed(op.name, op.kind, unit, None, None, True, off, op.boundary, work)


def is_contradicted(op: Op, off: Off | None) -> bool:
    """Whether plans of others have operations as large as this one on the ANE."""
    if off is None or off.cause != "too little work" or op.weight or op.kind == "matmul":
        return False
    return max((tensor.elements for tensor in op.outputs), default=0) >= _LARGE


def _without_costs(
    ops: Sequence[Op], units: Units, chip: str, no_data: Sequence[NoData]
) -> Prediction:
    """Support, and how much work each row of supported operations has on chips with costs."""
    known, placed = estimated(ops), list[Placed]()
    for off, group in groupby(ops, key=lambda op: bool(obstacle(op, "ane"))):
        members = list(group)
        work = _work(members) if known and not off else None
        placed += [_unplaced(op, obstacle(op, "ane"), work=work) for op in members]
    little, enough = launch_bounds()
    missing = (
        f"No costs of {chip} are public: where an operation runs is not predicted.",
        "Support is by limits measured on M4 (h16g).",
        f"Work is large where the ANE of each of {', '.join(models())} saves {enough:g} ms or "
        f"more, and small where {little:g} ms or less: both are far from what launches and "
        "switches cost.",
        *_missing(ops, no_data),
    )
    return Prediction(chip, "", units, tuple(placed), (), None, None, missing)


def _work(ops: Sequence[Op]) -> Work:
    saved = [
        math.fsum(min(cpu) - ane for ane, *cpu in estimates(ops, "CPU_AND_NE", model))
        for model in models().values()
    ]
    little, enough = launch_bounds()
    if min(saved) >= enough:
        return "large"
    return "small" if max(saved) <= little else "unknown"


def _reasons(
    ops: Sequence[Op], costs: Sequence[Row], paths: Paths, units: Units, model: CostModel
) -> list[Off | None]:
    ane = BACKENDS[units].index("ane")
    pairs = list(zip(ops, costs, strict=True))
    limits = [obstacle(op, "ane") if math.isinf(row[ane]) else "" for op, row in pairs]
    # The same program if the ANE took all of it, at the cost of its class there.
    taken = [
        (*row[:ane], milliseconds(op, "ane", model), *row[ane + 1 :]) if limit else row
        for (op, row), limit in zip(pairs, limits, strict=True)
    ]
    freed = shortest(taken, edge_costs(units, model), model.tie_ms).chosen
    barred = [index for index, limit in enumerate(limits) if limit]
    reasons: list[Off | None] = []
    for index, backend in enumerate(paths.chosen):
        short = paths.through[index][ane] - paths.total
        if backend == ane:
            reasons.append(None)
        elif limits[index]:
            reasons.append(Off("unsupported", limits[index]))
        elif freed[index] == ane:
            at = bisect(barred, index)
            nearest = min(barred[max(at - 1, 0) : at + 1], key=lambda i, to=index: abs(i - to))  # type: ignore[misc]
            reasons.append(Off("neighbour", short_ms=short, neighbour=ops[nearest].name))
        else:
            cpu = UNIT[BACKENDS[units][backend]] == "CPU"
            reasons.append(Off("too little work" if cpu else "cheaper on the GPU", short_ms=short))
    return reasons


def _segments(placed: Sequence[Placed]) -> Iterator[Segment]:
    for unit, group in groupby(enumerate(placed), key=lambda item: item[1].unit):
        members = list(group)
        duration = math.fsum(op.ms or 0.0 for _, op in members)
        yield Segment(unit or "CPU", members[0][0], members[-1][0], duration)


Shapes = Mapping[str, Sequence[int]]

_MOST_TOKENS = 512
_OPERANDS = {
    **dict.fromkeys(("conv", "conv_transpose", "linear"), ("x",)),
    **dict.fromkeys(("gather", "gather_along_axis", "gather_nd"), ("x", "indices")),
    **dict.fromkeys(("concat", "stack"), ("values",)),
    "matmul": ("x", "y"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "select": ("cond", "a", "b"),
}
"""Parameters that are counted though they may be constant, in the order the costs expect."""
_ELEMENTWISE = frozenset(
    {"add", "equal", "floor_div", "greater", "greater_equal", "less", "less_equal", "logical_and"}
    | {"logical_or", "logical_xor", "maximum", "minimum", "mod", "mul", "not_equal", "pow"}
    | {"real_div", "sub"}
)
_COMPUTED = {"runtime_indices": ("gather", "indices"), "runtime_begin": ("slice_by_size", "begin")}
_WEIGHTED = frozenset({"conv", "conv_transpose", "linear"})
_PARAMETERS = {"slice_update": ("begin", "end", "stride")}
"""Run-time integers that are no data, besides those that decide the result's extents."""
_ATTRIBUTES = {
    **dict.fromkeys(("avg_pool", "l2_pool", "max_pool"), ("kernel_sizes",)),
    "conv": ("dilations", "groups"),
    "conv_transpose": ("groups",),
    "matmul": ("transpose_x",),
    "transpose": ("perm",),
}
_STATES = frozenset({"read_state", "write_state", "coreml_update_state"})


def predict_model(
    model: MLModel, units: Units = "CPU_AND_NE", chip: str = "M4", tokens: int | None = None
) -> tuple[Predicted, ...]:
    """Predicted placement of a package, the likeliest to leave the ANE first.

    Weights need not be readable. `tokens` is T of flexible inputs; by default the least and the
    greatest they take, up to 512. `ManifestError` of an unknown chip.
    """
    functions = model.program.functions
    types = ((name, named.type) for name, f in functions.items() for named in f.inputs)
    flexible = {name for name, t in types if isinstance(t, TensorType) and None in t.shape}
    lengths = dict.fromkeys((tokens,) if tokens else token_range(model, _MOST_TOKENS))
    missing: list[NoData] = ["several functions"] if len(functions) > 1 else []
    missing += ["flexible shapes"] if flexible else []
    predicted: list[Predicted] = []
    for name, function in functions.items():
        for at in lengths if name in flexible else (None,):
            shapes, unknown = _shapes(model, function, at)
            ops = function_ops(function, shapes)
            prediction = predict(ops, units, chip, missing)
            predicted.append(Predicted(name, at, prediction, unknown, ops))
    return tuple(sorted(predicted, key=Predicted.weakness))


def _shapes(model: MLModel, function: Function, tokens: int | None) -> tuple[Shapes, str]:
    """Shapes of a function's values at a T, or why they are not known."""
    if tokens is None:
        return {}, ""
    if function is not model.main:
        return {}, "its inputs are flexible; choose the function by name"
    try:
        return value_shapes(model, tokens), ""
    except AneError as error:
        return {}, str(error).removeprefix(f"{model.path}: ").rstrip(".")


def function_ops(function: Function, shapes: Shapes = MappingProxyType({})) -> tuple[Op, ...]:
    """Operations in file order, nested blocks in line; without constants and what folds to them."""
    top = {id(operation) for operation in function.block.operations}
    readers = (_Reader(site, shapes) for site in Graph(function).sites())
    return tuple(r.op(nested=id(r.site.operation) not in top) for r in readers if not r.folded)


@dataclass(frozen=True, eq=False)
class _Reader:
    site: Site
    shapes: Shapes

    @property
    def folded(self) -> bool:
        outputs = self.site.operation.outputs
        return bool(outputs) and all(self._known(Ref(named.name)) for named in outputs)

    def op(self, *, nested: bool) -> Op:
        site, inputs = self.site, tuple(self._inputs())
        known = ((name, site.integers(name)) for name in _ATTRIBUTES.get(site.op, ()))
        attributes = {name: values for name, values in known if values}
        given = site.argument("weight") if site.op in _WEIGHTED else None
        weight = self._argument(given) if given is not None else None
        if weight and not weight.constant:
            inputs = (*inputs, weight)
        if site.op in _WEIGHTED:
            attributes["bias"] = (int(site.argument("bias") is not None),)
        if perm := attributes.get("perm"):
            attributes["perm"] = tuple(axis % len(perm) for axis in perm)
        for name, (kind, parameter) in _COMPUTED.items():
            if site.op == kind and (argument := site.argument(parameter)):
                attributes[name] = (int(not self._known(argument)),)
        named = site.operation.outputs
        made = (self._tensor(o.name, o.type) for o in named if isinstance(o.type, TensorType))
        missing, boundary = tuple(self._no_data(nested)), bool(site.no_compute)
        name = site.operation.name
        return Op(name, site.op, inputs, tuple(made), weight, attributes, missing, boundary)

    def _no_data(self, nested: bool) -> Iterator[NoData]:
        arguments = (argument for _, argument in self.site.arguments())
        if any(any(self.site.compressed_by(argument)) for argument in arguments):
            yield "compressed weights"
        if self.site.op in _STATES:
            yield "states"
        if nested:
            yield "nested blocks"

    def _inputs(self) -> Iterator[Tensor]:
        site = self.site
        names = ("x", "y") if site.op in _ELEMENTWISE else _OPERANDS.get(site.op, ())
        left_out = (*EXTENT_PARAMETERS.get(site.op, ()), *_PARAMETERS.get(site.op, ()))
        inputs = site.operation.inputs
        taken = names or [name for name in inputs if name not in left_out]
        arguments = (argument for name in taken for argument in inputs.get(name, ()))
        for tensor in filter(None, map(self._argument, arguments)):
            if names or not tensor.constant:
                yield tensor

    def _argument(self, argument: Argument) -> Tensor | None:
        kind = self.site.graph.tensor(argument)
        if kind is None:
            return None
        tensor = self._tensor(argument.name if isinstance(argument, Ref) else "", kind)
        if self._known(argument):
            return replace(tensor, constant=True)
        # Core ML casts the run-time indices of a gather before it segments the program.
        if self.site.op.startswith("gather") and tensor.dtype == "int32":
            return replace(tensor, dtype="int16")
        return tensor

    def _tensor(self, name: str, kind: TensorType) -> Tensor:
        shape = kind.shape if None not in kind.shape else self.shapes.get(name, kind.shape)
        return Tensor(tuple(shape), kind.dtype.value)

    def _known(self, argument: Argument) -> bool:
        return self.site.graph.origin(argument).values < Depends.VALUES
