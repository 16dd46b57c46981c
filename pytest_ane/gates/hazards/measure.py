"""The hazards measurement: what operations meet that run by the ANE's rules.

Margins, infinities and cliffs are of everything that ran. Shares that are lost, by dropped products
and by tables, are of all probes that are as large as what a model meets; dropped products are
counted by exponent, not one by one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.arrays import Array, DoubleArray
from pytest_ane.mlprogram.records import MLModel, Operation, Ref
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget import run_cases

if TYPE_CHECKING:
    # Importing it compiles kernels, which takes a second: only a simulation does.
    from pytest_ane.mlprogram.executor.ane.accumulator import Columns, Sums, Weight
    from pytest_ane.mlprogram.executor.ane.products import Factors
    from pytest_ane.mlprogram.executor.ane.simulation import Computed


Hazard: TypeAlias = Literal[
    "sum", "order", "infinity", "softplus", "logsumexp", "dropped", "table", "late-scale"
]
Role: TypeAlias = Literal["", "scores", "values"]
"""Of a sum of products in attention: it yields queries, keys or values; or it sums the values."""


@dataclass(frozen=True)
class Peak:
    """One hazard of one operation, on the probe where it is greatest.

    Attributes:
        hazard: `sum`: largest |sum| of products, infinite where it overflowed.
            `order`: outputs that overflow in some orders of summation only.
            `infinity`: operands that are infinite or NaN, which the ANE takes for numbers.
            `softplus`: largest exp(x) + 1; `logsumexp`: largest sum of exp(x).
            `dropped`: share of sum |w x| that is lost, as products are dropped whole.
            `table`: error of an activation's table, root mean square relative to that of its exact
            results.
            `late-scale`: largest |sum| of integer codes, if their scale comes after the sum.
        kind: as MIL calls it.
        value: as `hazard` says.
        count: outputs that overflowed; of `dropped` the share of the products that are not 0.
    """

    hazard: Hazard
    op: str
    kind: str
    probe: str
    value: float
    count: float = 0
    role: Role = ""


@dataclass(frozen=True)
class Hazards:
    """What the ANE's arithmetic met on a shard's probes: peaks of each hazard and operation."""

    peaks: tuple[Peak, ...]
    rules: RuleShares
    probes: int
    provenance: Mapping[str, Any] = field(default_factory=dict)


PRODUCTS = frozenset(("conv", "linear", "matmul"))
_ATTENTION = frozenset(("matmul", "einsum", "scaled_dot_product_attention"))
_ENDS = PRODUCTS | {"softmax", "reduce_mean", "reduce_sum", "layer_norm", "silu", "gelu"}
_MOVES = frozenset(
    ("cast", "concat", "expand_dims", "identity", "reshape", "slice_by_index", "slice_by_size",
     "split", "squeeze", "tile", "transpose")
)  # fmt: skip


class Graph:
    """Operations by what makes and what takes their results."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = list(operations)
        self._makers = {out.name: op for op in self._operations for out in op.outputs}
        self._takers: dict[str, list[Operation]] = defaultdict(list)
        for op in self._operations:
            for name in op.reads:
                self._takers[name].append(op)

    def role(self, op: Operation) -> Role:
        """What a sum of products does in attention.

        It multiplies a softmax, moved at most; or its result reaches a product of activations
        before any other sum or norm.
        """
        if op.op == "matmul":
            softmax, moves = (lambda o: o.op == "softmax"), (lambda o: o.op in _MOVES)
            return "values" if _reaches(self._made_of(op), self._made_of, softmax, moves) else ""
        attends, passes = (lambda o: o.op in _ATTENTION), (lambda o: o.op not in _ENDS)
        leads = op.op in PRODUCTS and _reaches(self._taken_by(op), self._taken_by, attends, passes)
        return "scores" if leads else ""

    def follows(self, op: Operation, names: Collection[str]) -> bool:
        """Whether an operation takes, by whatever way, the result of one of these."""
        return _reaches([op], self._made_of, lambda o: any(name in names for name in o.reads))

    def logarithms(self) -> Iterator[tuple[Hazard, Operation, Operation]]:
        """Logarithms of `exp(x) + 1` and of a sum of `exp(x)`: which, its exp, its log."""
        for op in self._operations:
            below = self._made(op, "x") if op.op == "log" else None
            if below is None or below.op not in ("add", "reduce_sum"):
                continue
            inputs = [self._made(below, key) for key in below.inputs]
            exponential = next((i for i in inputs if i is not None and i.op == "exp"), None)
            terms = [self._made(below, key) for key in ("x", "y")]
            constant = any(maker is None or maker.op == "const" for maker in terms)
            if exponential is not None and (below.op != "add" or constant):
                yield "softplus" if below.op == "add" else "logsumexp", exponential, op

    def _made(self, op: Operation, key: str) -> Operation | None:
        arguments = op.inputs.get(key, ())  # What is written as an attribute is not computed with.
        only = arguments[0] if len(arguments) == 1 else None
        return self._makers.get(only.name) if isinstance(only, Ref) else None

    def _made_of(self, op: Operation) -> list[Operation]:
        return [self._makers[name] for name in op.reads if name in self._makers]

    def _taken_by(self, op: Operation) -> list[Operation]:
        return [taker for out in op.outputs for taker in self._takers[out.name]]


def _reaches(
    start: Iterable[Operation], beyond: Callable[[Operation], Iterable[Operation]],
    wanted: Callable[[Operation], bool], through: Callable[[Operation], bool] = lambda _: True,
) -> bool:  # fmt: skip
    """Whether a wanted operation lies at the start, or beyond those that a way leads through."""
    rest, visited = [*start], set[str]()
    while rest:
        op = rest.pop()
        if wanted(op):
            return True
        if op.name not in visited and through(op):
            visited.add(op.name)
            rest += beyond(op)
    return False


_TABLES = frozenset(
    ("erf", "exp", "exp2", "gelu", "inverse", "log", "rsqrt", "sigmoid", "silu", "sqrt", "tanh")
)
_STRESS = frozenset(("massive", "extreme"))
"""Kinds of probes with values that no model meets, to see what overflows."""
_DECODING = PRODUCTS | {"add", "sub", "mul", "square", "log"}
"""Operations for which it matters that an infinity is 65536; others keep it as large as it is."""


def measure(runner: CpuRunner, cases: Iterable[Case], provenance: Mapping[str, Any]) -> Hazards:
    """Run every case in the ANE's arithmetic, ruled operations watched; fails as `run_cases`."""
    model = runner.model
    programs = (model,) if isinstance(model, MLModel) else tuple(model.programs.values())
    observer = Observer(Graph(op for part in programs for op in part.program.walk()))
    runner.session.watch(observer)
    cases = list(cases)
    for case in cases:
        observer.probe, observer.shares = case.name, case.kind not in _STRESS
        list(run_cases(runner, [case]))
    rules = runner.rule_shares or RuleShares()
    return Hazards(observer.peaks, rules, len(cases), dict(provenance))


class Observer:
    """Keeps the greatest value of each hazard and operation.

    `probe` is the name of the one that runs, and `shares` whether what it loses counts.
    """

    def __init__(self, graph: Graph) -> None:
        self.probe, self.shares = "", True
        self._graph = graph
        self._peaks: dict[tuple[Hazard, str], Peak] = {}
        self._parts: dict[tuple[Hazard, str, str], DoubleArray] = defaultdict(lambda: np.zeros(4))
        self._ops: dict[str, Operation] = {}
        self._columns: dict[str, tuple[Weight | None, Columns]] = {}
        self._codes: dict[str, Array | None] = {}
        self._finite: dict[int, tuple[Any, int]] = {}
        self._exponentials: dict[str, list[Operation]] = defaultdict(list)
        self._logs: dict[str, Hazard] = {}
        self._overflowed: set[str] = set()
        for hazard, exponential, log in graph.logarithms():
            self._logs[log.name] = hazard
            if hazard == "softplus":
                self._exponentials[exponential.name].append(log)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """Of all that ran so far."""
        for (hazard, name, probe), part in self._parts.items():
            op = self._ops[name]
            if hazard == "table":
                error, size = float(part[0]), float(part[1])
                lost = math.sqrt(error / size) if size else math.inf if error else 0.0
                self._keep(Peak(hazard, name, op.op, probe, lost))
            elif part[3]:
                shares, role = (part[2] / part[3], part[0] / part[1]), self._graph.role(op)
                self._keep(Peak(hazard, name, op.op, probe, *shares, role))
        return tuple(self._peaks.values())

    def __call__(self, run: Computed) -> None:
        """Look at a run of an operation."""
        op = run.op
        self._ops[op.name] = op
        decodes = op.op in _DECODING and op.name not in self._logs
        count = self._not_finite(run) if decodes else 0
        # Those of a sum that overflowed are named there.
        if count and not self._graph.follows(op, self._overflowed):
            self._note("infinity", op, count)
        if op.op in PRODUCTS:
            self._sums(run, run.result)
        elif op.op in _TABLES and self.shares:
            self._table(run)
        for hazard, value, log in self._logarithms(run):
            self._note(hazard, log, value)

    def _note(self, hazard: Hazard, op: Operation, value: float, count: float = 0) -> None:
        self._keep(Peak(hazard, op.name, op.op, self.probe, value, count, self._graph.role(op)))

    def _keep(self, peak: Peak) -> None:
        known = self._peaks.get((peak.hazard, peak.op))
        if known is None or (peak.value, peak.count) > (known.value, known.count):
            self._peaks[peak.hazard, peak.op] = peak

    def _not_finite(self, run: Computed) -> int:
        """Operands that are infinite or NaN; constant ones are looked at once."""
        count = 0
        for value in run.parameters.values():
            source = getattr(value, "source", value)
            if source is not value:
                if id(source) not in self._finite:
                    self._finite[id(source)] = source, _infinities(np.asarray(source))
                count += self._finite[id(source)][1]
            elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
                count += _infinities(value)
        return count

    def _sums(self, run: Computed, sums: Sums) -> None:
        op, values = run.op, sums.values
        finite = np.isfinite(values)
        if sums.infinite:
            self._overflowed.update(out.name for out in op.outputs)
        # What overflows in order of k may do so in that order only.
        always = sums.infinite and int(np.sum(~finite & ~sums.mask))
        largest = float(np.abs(values).max(initial=0.0, where=finite))
        self._note("sum", op, math.inf if always else largest, always)
        if sums.may_overflow is not None and (depends := int(sums.may_overflow.sum())):
            self._note("order", op, depends)
        if sums.operands is not None and self.shares:
            self._parts["dropped", op.name, self.probe] += self._losses(run, *sums.operands)
        if (codes := self._sums_of_codes(run, values)) is not None:
            self._note("late-scale", op, codes)

    def _losses(self, run: Computed, weight: Weight, vectors: Array) -> DoubleArray:
        """Dropped products, all products, and the sums of |w x| of both."""
        from pytest_ane.mlprogram.executor.ane.accumulator import Columns, Weight

        factors, name = _constant(run), run.op.name
        if factors is not None and weight.factors.size < math.prod(factors.shape):
            # It was decoded in parts, of which `weight` is the last.
            if name not in self._columns:
                rows = factors.rows(np.asarray(factors.source))
                self._columns[name] = None, Columns.of(Weight.of(rows))
        elif self._columns.get(name, (None,))[0] is not weight:
            self._columns[name] = weight, Columns.of(weight)
        columns = self._columns[name][1]
        return columns.losses(vectors)[[1, 0, 3, 2]]

    def _sums_of_codes(self, run: Computed, values: Array) -> float | None:
        """Largest |sum| without bias before its row's scale; None where no codes are summed."""
        factors, name = _constant(run), run.op.name
        if factors is None or factors.scale is None or run.op.op == "matmul":
            return None
        if name not in self._codes:
            from pytest_ane.mlprogram.executor.ane.products import Codes

            layout = factors.width, factors.groups, factors.transposed
            codes = Codes(np.asarray(factors.source), *layout, scale=factors.scale)
            # None unless the weight is whole numbers times the scale of each row.
            self._codes[name] = codes.codes[1].reshape(-1) if codes.is_exact else None
        if (scale := self._codes[name]) is None:
            return None
        rows = np.moveaxis(values, 1 if run.op.op == "conv" else -1, 0).reshape(len(scale), -1)
        bias = run.parameters.get("bias")
        sums = rows if bias is None else rows - np.reshape(bias, (-1, 1))
        finite = np.isfinite(sums)
        return float(np.max(np.abs(sums / scale[:, None]), initial=0.0, where=finite))

    def _table(self, run: Computed) -> None:
        """Squares of errors and of exact results, where these are fp16 numbers."""
        with np.errstate(all="ignore"):
            exact = np.asarray(run.typed(**run.parameters), np.float64)
            counts = np.isfinite(run.parameters["x"]) & (np.abs(exact) <= fp16.MAX)
            error = np.where(counts, run.result - exact, 0.0)
            size = np.where(counts, exact, 0.0)
            sums = np.vdot(error, error), np.vdot(size, size)
        self._parts["table", run.op.name, self.probe][:2] += sums

    def _logarithms(self, run: Computed) -> Iterator[tuple[Hazard, float, Operation]]:
        """What logarithms of sums of exponentials sum, in float64."""
        op, x = run.op, run.parameters.get("x")
        softplus = [op] if op.op == "softplus" else self._exponentials.get(op.name, [])
        with np.errstate(all="ignore"):
            for log in softplus:
                yield "softplus", float(np.exp(np.float64(_most(x))) + 1), log
            if op.op == "reduce_log_sum_exp":
                keys = ("axes", "keep_dims")
                given = {key: run.parameters[key] for key in keys if key in run.parameters}
                total = run.typed(x=np.asarray(x, np.float64), **given)
                yield "logsumexp", float(np.exp(np.float64(_most(total)))), op
            elif op.op == "log" and self._logs.get(op.name) == "logsumexp":
                yield "logsumexp", _most(x), op


def _constant(run: Computed) -> Factors | None:
    values = (run.parameters.get(key) for key in ("weight", "x", "y"))
    return next((value for value in values if hasattr(value, "source")), None)


def _infinities(x: Array) -> int:
    return int(x.size - np.count_nonzero(np.isfinite(x)))


def _most(x: Any) -> float:
    return float(np.nanmax(np.asarray(x, np.float64), initial=-np.inf))
