"""What predictions add to the verdict: figures, findings, and the program as a table.

The table says of every compute operation what rules, predictions and a plan say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pytest_ane.gates.placement.forecast import Forecast, Match, allows
from pytest_ane.gates.placement.plans import Plan, plain
from pytest_ane.gates.placement.rules import find
from pytest_ane.gates.placement.segmenter import Placed, Predicted
from pytest_ane.gates.verdict import Cell, Column, Figure, Finding, Severity, Table, Where, rounded

_REMEDY = (
    "see `pytest-ane explain` for fixes, or name what may be off the ANE in "
    "policy.placement.allow-off"
)


def predicted_figures(predictions: Sequence[Predicted]) -> Iterator[Figure]:
    """`predicted: 58 of 58 compute ops on the ANE in 1 segment (M4, macOS 27)`, and the margin.

    Of several T or functions it is the one that is likeliest to leave the ANE.
    """
    if not predictions:
        return
    weakest, unknown = predictions[0], next((p.unknown for p in predictions if p.unknown), "")
    prediction, compute = weakest.prediction, weakest.compute
    if prediction.total_ms is None:
        why = unknown or "shapes are known only at run time"
        yield Figure("predicted", f"nothing: {plain(why)}", label="predicted", shown=True)
        return
    at = f", T = {weakest.tokens}" if weakest.tokens is not None else ""
    segments = sum(segment.unit == "ANE" for segment in prediction.segments)
    undecided = sum(op.undecided for op in compute)
    yield Figure(
        "predicted_ane_ops",
        sum(op.unit == "ANE" for op in compute),
        f"compute ops on the ANE in {segments} segment{'' if segments == 1 else 's'}",
        "predicted:",
        of=len(compute),
        note=f"{prediction.chip}, {prediction.system}{at}",
        shown=True,
    )
    yield Figure("predicted_undecided_ops", undecided, "ops undecided", shown=undecided > 0)
    yield Figure("predicted_segments", len(prediction.segments), "segments")
    if prediction.margin is not None:
        yield Figure("predicted_margin", prediction.margin / 1000, "s", "margin", shown=True)


def required(predictions: Sequence[Predicted], allow_off: Sequence[str]) -> Iterator[Finding]:
    """Findings under `require = "predicted"`: failed off the ANE, unproven where undecided.

    Of several T that say the same of an op, the weakest one's is told.
    """
    told: set[tuple[str, str]] = set()
    for predicted, op in _judged(predictions, allow_off):
        if op.unit != "ANE" and not op.undecided and (predicted.function, op.name) not in told:
            told.add((predicted.function, op.name))
            yield _finding("failed", op, predicted, f"is predicted on the {op.unit}")
    for function, why in _unpredicted(predictions).items():
        yield Finding(
            "unproven",
            f"Nothing is predicted of function {plain(function)}: {plain(why)}",
            remedy="give its inputs shapes that are known, or record a plan on a Mac",
        )
    for predicted, op in _judged(predictions, allow_off):
        if op.undecided and (predicted.function, op.name) not in told:
            told.add((predicted.function, op.name))
            yield _finding("unproven", op, predicted, "is undecided")


def _unpredicted(predictions: Sequence[Predicted]) -> dict[str, str]:
    """Functions without a prediction at some T, and why."""
    reasons: dict[str, str] = {}
    for predicted in predictions:
        if predicted.prediction.total_ms is None:
            why = predicted.unknown or "Core ML makes no estimates of this program"
            reasons.setdefault(predicted.function, why)
        elif not predicted.compute:
            reasons.setdefault(predicted.function, "Core ML folds all its ops into constants")
    return reasons


def _judged(
    predictions: Sequence[Predicted], allow_off: Sequence[str]
) -> Iterator[tuple[Predicted, Placed]]:
    """Compute ops with an estimate that are not allowed off the ANE."""
    for predicted in predictions:
        if predicted.prediction.total_ms is not None:
            for op in predicted.compute:
                if not allows(allow_off, op.name, op.kind):
                    yield predicted, op


def assumptions(predictions: Sequence[Predicted]) -> tuple[Table, ...]:
    """What the predictions rest on without data."""
    sentences = dict.fromkeys(s for p in predictions for s in p.prediction.no_data)
    if not sentences:
        return ()
    rows = tuple((plain(sentence),) for sentence in sentences)
    title = "what the prediction has no data on"
    return (Table(title, (Column("assumption"),), rows, "assumptions"),)


def contradictions(plan: Plan, predictions: Sequence[Predicted]) -> tuple[Table, ...]:
    """Operations that a plan places elsewhere than every prediction that is decided."""
    units: dict[tuple[str, str], set[str]] = {}
    margins: dict[tuple[str, str], float | None] = {}
    for predicted in predictions:
        for op in predicted.compute:
            key = (predicted.function, op.name)
            if op.unit is None or op.undecided:
                units.setdefault(key, set()).update(("ANE", "CPU", "GPU"))
            else:
                units.setdefault(key, set()).add(op.unit)
                margins[key] = op.margin
    rows = tuple(
        (
            plain(op.op or "operation"),
            plain(op.name),
            op.preferred,
            " or ".join(sorted(units[function, op.name])),
            margins[function, op.name],
        )
        for function, op in plan.walk()
        if op.preferred and op.preferred not in units.get((function, op.name), {op.preferred})
    )
    columns = ("op", "name", "plan", "predicted", "margin, ms")
    title = "compute ops that the plan places elsewhere than predicted"
    table = Table(title, tuple(map(Column, columns)), rows, "contradictions")
    return (table,) if rows else ()


def _finding(severity: Severity, op: Placed, predicted: Predicted, state: str) -> Finding:
    at = f" at T = {predicted.tokens}" if predicted.tokens is not None else ""
    reason = f"{plain(op.kind)} `{plain(op.name)}` {state}{at}: {reason_of(op)}"
    verb, _, rest = state.partition(" ")
    plural = {"is": "are"}[verb]
    return Finding(severity, reason, Where(op=plain(op.name)), _REMEDY, f"{plural} {rest}{at}")


def reason_of(op: Placed) -> str:
    """Why an operation is predicted off the ANE, or undecided, in a few words."""
    off = op.off
    if op.undecided:
        margin = 0.0 if op.margin is None else op.margin
        return f"another unit costs {margin:.4g} ms more, which is too close to call"
    if off is None or off.cause == "unsupported":
        return off.limit if off else "the ANE does not take it"
    short = "" if off.short_ms is None else f", {off.short_ms:.4g} ms short of it"
    if off.cause == "neighbour":
        return f"`{plain(off.neighbour)}` near it is not for the ANE{short}"
    return f"{off.cause}{short}"


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
        device = None if op.folded else op.preferred or "none"
        why = ["left out by the compiler"] * op.folded + [plain(op.why)] * bool(op.why)
        rows.append(_row(*names, None, device, predicted.get(key), why))
    yield from _table(rows)


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
