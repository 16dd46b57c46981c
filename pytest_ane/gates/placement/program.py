"""The program as a table: what rules, predictions and a plan say of every compute operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pytest_ane.gates.placement.forecast import Forecast, Match
from pytest_ane.gates.placement.plans import Plan, PlannedOperation, plain
from pytest_ane.gates.placement.predicted import reason_of
from pytest_ane.gates.placement.rules import find
from pytest_ane.gates.placement.segmenter import Placed, Predicted
from pytest_ane.gates.verdict import Cell, Column, Table, rounded

_COLUMNS = (
    *map(Column, ("op", "type", "function", "forecast", "predicted", "recorded")),
    Column("predicted time", "s"),
    Column("why"),
)
_Key = tuple[str, str]
"""Function and operation."""


def forecast_table(forecast: Forecast) -> Iterator[Table]:
    """Operations of a forecast, in program order; no device is recorded."""
    matches: dict[int | None, list[Match]] = defaultdict(list)
    for match in forecast.matches:
        matches[match.index].append(match)
    whole = [match for match in matches[None] if match.outcome == "ineligible"]
    predicted = _by_name(forecast.predictions)
    rows = []
    for op in forecast.ops:
        of = [*whole, *matches[op.index]]
        why = [f"{m.rule}, allowed" if m.outcome == "allowed" else m.rule for m in of]
        placed = predicted.get((plain(op.function), plain(op.name)))
        rows.append(_row(op.name, op.type, op.function, _word(of), None, placed, why))
    yield from _table(rows)


def plan_table(plan: Plan, predictions: Sequence[Predicted]) -> Iterator[Table]:
    """Operations of a recorded plan; `none` is no device. The rules were not asked."""
    predicted = _by_name(predictions)
    rows = []
    for function, op in plan.walk():
        if op.boundary or op.op == "const" or (op.op or "").startswith("constexpr_"):
            continue
        key = (plain(function), plain(op.name))
        names = (key[1], plain(op.op or ""), key[0])
        rows.append(_row(*names, None, _device(op), predicted.get(key), [*_said(op)]))
    yield from _table(rows)


def _device(op: PlannedOperation) -> str | None:
    return None if op.folded else op.preferred or "none"


def _said(op: PlannedOperation) -> Iterator[str]:
    if op.folded:
        yield "left out by the compiler"
    if op.why:
        yield plain(op.why)


def _word(matches: Sequence[Match]) -> str:
    """The forecast in a word; what is allowed off the ANE is ineligible all the same."""
    if any(match.outcome in ("ineligible", "allowed") for match in matches):
        return "ineligible"
    rules = [find(match.rule, "warned") for match in matches]
    to_cpu = any(rule and "CPU" in rule.consequence for rule in rules)
    return "likely CPU" if to_cpu else "eligible"


def _by_name(predictions: Sequence[Predicted]) -> Mapping[_Key, Placed]:
    """Predicted operations; of several T those of the one that is likeliest to leave the ANE."""
    placed: dict[_Key, Placed] = {}
    for predicted in predictions:
        if predicted.prediction.total_ms is not None:
            for op in predicted.compute:
                placed.setdefault((plain(predicted.function), plain(op.name)), op)
    return placed


def _row(
    name: str,
    kind: str,
    function: str,
    forecast: str | None,
    recorded: str | None,
    placed: Placed | None,
    why: Sequence[str],
) -> tuple[Cell, ...]:
    unit, duration, reasons = None, None, [*why]
    if placed is not None:
        unit = "" if placed.undecided else placed.unit
        duration = None if placed.ms is None else rounded(placed.ms / 1000)
        reasons += [reason_of(placed)] if unit != "ANE" else []
    return (name, kind, function, forecast, unit, recorded, duration, "; ".join(reasons))


def _table(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Table]:
    if rows:
        yield Table("the program", _COLUMNS, tuple(rows), "program", listed=False)
