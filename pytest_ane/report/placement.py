"""Placement as people read it: what rules forecast, costs predict, and plans say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_ane.gates.placement import Forecast, judge
from pytest_ane.gates.placement.plans import Plan, Summary, analytics, plain, summarise
from pytest_ane.gates.placement.segmenter import Off, Placed, Predicted, Prediction
from pytest_ane.gates.verdict import counted, some
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.report.verdict import details, reasons, remarks, row


def explain(forecast: Forecast, os: str = "macOS 26", width: int | None = None) -> Iterator[str]:
    """The forecast for a system: verdict, counts, rules; `ManifestError` where `os` names none."""
    policy = PlacementPolicy.model_construct(os=os)
    yield row(judge(forecast, policy, "package", own=True))
    # Predictions have lines of their own.
    verdict = judge(replace(forecast, predictions=()), policy, "package", own=True)
    yield from (f"  - {reason}" for reason in reasons(verdict))
    if verdict.status != "passed":
        yield from remarks(verdict)
    if forecast.compute:
        yield f"compute ops: {_counts(forecast.compute)}"
    if forecast.left_out:
        yield f"not counted: {_counts(forecast.left_out)}"
    yield from details(verdict, width)


def explain_plan(plan: Plan, width: int | None = None) -> Iterator[str]:
    """A recorded plan: the counts, what they prove, and what is not on the ANE."""
    verdict, summary = judge(plan, PlacementPolicy(), "plan"), summarise(plan)
    yield " · ".join(_counted(summary))
    units = f" · compute units {plain(plan.compute_units)}" if plan.compute_units else ""
    yield f"{summary.outcome} (plan, {plan.source}{units})"
    yield from (f"  - {reason}" for reason in reasons(verdict))
    yield from details(verdict, width)
    if estimates := analytics.path_ms(plan) if plan.source == "analytics" else None:
        placed, most = estimates
        yield (
            f"Core ML's estimates: {placed:.4f} ms as placed, {most:.4f} ms with every "
            "supported op on the ANE, launches and switches included"
        )
    for message in plan.messages:
        kind = "failure" if message.failure else "note"
        yield f"line {message.line}: {kind}: {plain(message.meaning)}"
        yield f"  {plain(message.text)}"


def _counted(summary: Summary) -> Iterator[str]:
    """`conv_ane=36/36 conv_non_ane=0`, compute ops by device, and what was not counted."""
    if summary.conv_total is None or summary.conv_ane is None:
        yield "conv_ane=? conv_non_ane=?"
    else:
        off = summary.conv_total - summary.conv_ane
        yield f"conv_ane={summary.conv_ane}/{summary.conv_total} conv_non_ane={off}"
    if not summary.compute and summary.conv_total:
        yield "other ops not recorded"  # A file of counts that has convolutions alone.
        return
    yield f"compute {summary.devices.get('ANE', 0)}/{summary.compute} ANE"
    if summary.elsewhere:
        yield f"{summary.elsewhere} on GPU or CPU"
    else:
        yield f"GPU {summary.devices.get('GPU', 0)}"
        yield f"CPU {summary.devices.get('CPU', 0)}"
    if summary.compile_time:
        yield f"{sum(summary.compile_time.values())} compile-time ({_counts(summary.compile_time)})"
    if summary.added:
        yield f"added by the compiler {_counts(summary.added)}"
    others = {
        "without a device": summary.unassigned, "folded by the compiler": summary.folded,
        "renamed by the compiler": summary.renamed,
        "at the boundary or for indices": summary.boundary_casts,
    }  # fmt: skip
    yield from (f"{count} {what}" for what, count in others.items() if count)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {plain(kind)}" for kind, count in counts.items())


_SEGMENTS = 12
_GROUPS = 12
_KINDS = 6
_NAMES = 3


@dataclass(frozen=True)
class Group:
    """Operations that are off the ANE, or undecided, for the same reason.

    `short_ms` are the least and most milliseconds that are short of the ANE, if costs decide.
    """

    reason: str
    operations: tuple[int, ...]
    short_ms: tuple[float, float] | None = None


def off_groups(prediction: Prediction) -> list[Group]:
    """Operations off the ANE by reason, in the order in which reasons first appear."""
    kinds = {op.name: op.kind for op in prediction.operations}
    groups = grouped(
        ((off.cause, off.limit or kinds.get(off.neighbour, "")), (index, off))
        for index, op in enumerate(prediction.operations) if (off := op.off)
    )  # fmt: skip
    return [_off_group(*key, dict(members)) for key, members in groups.items()]


def _off_group(cause: str, what: str, members: Mapping[int, Off]) -> Group:
    reason = f"not supported: {what}" if cause == "unsupported" else cause
    if cause == "neighbour":
        names = dict.fromkeys(f"`{plain(off.neighbour)}`" for off in members.values())
        reason = f"pulled along by {what} {some(names, _NAMES)}"
    short = [off.short_ms for off in members.values() if off.short_ms is not None]
    return Group(reason, tuple(members), (min(short), max(short)) if short else None)


def undecided_groups(prediction: Prediction) -> list[Group]:
    """Operations that another unit may take as well, by the predicted unit."""
    open_ = ((op.unit, index) for index, op in enumerate(prediction.operations) if op.undecided)
    return [Group(f"predicted on the {unit}", tuple(of)) for unit, of in grouped(open_).items()]


def prediction_lines(predictions: Sequence[Predicted], *, several: bool = False) -> Iterator[str]:
    """The map of one function, short however large the program is.

    Of predictions at several T the first is shown in full; `several` functions are named.
    """
    prediction = predictions[0].prediction
    yield from (headline(predicted, several=several) for predicted in predictions)
    if prediction.total_ms is not None:
        at = f"T = {predictions[0].tokens}: " if len(predictions) > 1 else ""
        yield f"{at}{_path(prediction)}"
        yield from _segments(prediction)
    # How much work supported operations have is known where costs are not.
    if rows := grouped((op.work, op) for op in prediction.operations if op.work):
        yield "supported:"
    for work in sorted(rows, key=("large", "small", "unknown").index):
        yield from _members(rows[work], f"in rows of {work} work")
    yield from _reasons(prediction)
    if prediction.no_data and not predictions[0].unknown:
        yield "rests on:"
        yield from (f"  - {plain(sentence)}" for sentence in prediction.no_data)


def headline(predicted: Predicted, *, several: bool = False) -> str:
    """Chip, system and units, and how many compute ops are on the ANE."""
    prediction = predicted.prediction
    at = f", T = {predicted.tokens}" if predicted.tokens is not None else ""
    function = f" {plain(predicted.function)}" if several else ""
    chip = ", ".join(filter(None, (prediction.chip, prediction.system, prediction.units)))
    start = f"predicted{function} ({chip}{at}): "
    if any(op.work for op in prediction.operations):
        supported = sum(op.off is None for op in predicted.compute)
        count = f"{supported:,} of {len(predicted.compute):,}"
        large = sum(op.work == "large" for op in predicted.compute)
        return (
            f"{start}no units, as costs are unknown; {count} compute ops supported, {large:,} in "
            "rows of large work"
        )
    if prediction.total_ms is None:
        why = predicted.unknown or "Core ML makes no estimates where values decide shapes"
        return f"{start}nothing; {plain(why)}"
    on_ane = sum(op.unit == "ANE" for op in predicted.compute)
    segments = sum(segment.unit == "ANE" for segment in prediction.segments)
    count = f" in {counted(segments, 'segment')}" if segments else ""
    undecided = sum(op.undecided for op in predicted.compute)
    open_ = f", {undecided:,} undecided" if undecided else ""
    return f"{start}{on_ane:,} of {len(predicted.compute):,} compute ops on the ANE{count}{open_}"


def _path(prediction: Prediction) -> str:
    total, without, margin = (
        _ms(value or 0.0)
        for value in (prediction.total_ms, prediction.without_ane_ms, prediction.margin)
    )
    between = (prediction.total_ms or 0.0) - sum(segment.ms for segment in prediction.segments)
    switches = f"{_ms(between)} for launches and {counted(prediction.switches, 'switch', 'es')}"
    return f"path {total} ({switches}); without the ANE {without}, margin {margin}"


def _segments(prediction: Prediction) -> Iterator[str]:
    if not (segments := prediction.segments):
        return
    yield "segments, in order:"
    for number, segment in enumerate(segments[:_SEGMENTS], 1):
        members = prediction.operations[segment.first : segment.last + 1]
        first, last = plain(members[0].name), plain(members[-1].name)
        names = first if len(members) == 1 else f"{first} ... {last}"
        head = f"{segment.unit}  {_ms(segment.ms)}  {counted(len(members), 'op')}"
        yield f"  {number}. {head}: {names}"
        yield f"     {_placed(members)}"
    yield from _more(len(segments) - _SEGMENTS, "segments")


def _reasons(prediction: Prediction) -> Iterator[str]:
    groups = off_groups(prediction)
    if any(group.short_ms for group in groups):
        yield "off the ANE (short: what the best path with an op on the ANE costs more):"
    elif groups:
        yield "off the ANE:"
    yield from _groups(groups, prediction.operations)
    if (undecided := undecided_groups(prediction)) and prediction.total_ms is not None:
        yield "undecided, as another unit costs nearly the same:"
        yield from _groups(undecided, prediction.operations)


def _groups(groups: Sequence[Group], operations: Sequence[Placed]) -> Iterator[str]:
    for group in sorted(groups, key=lambda group: -len(group.operations))[:_GROUPS]:
        members = [operations[index] for index in group.operations]
        yield from _members(members, f"{plain(group.reason)}{_short_of(group)}:")
    yield from _more(len(groups) - _GROUPS, "reasons")


def _members(members: Sequence[Placed], what: str) -> Iterator[str]:
    yield f"  - {counted(len(members), 'op')} {what}"
    yield f"    {_placed(members)}: {some((plain(op.name) for op in members), _NAMES)}"


def _short_of(group: Group) -> str:
    if group.short_ms is None:
        return ""
    least, most = map(_ms, group.short_ms)
    amount = least if least == most else f"{least.removesuffix(' ms')} to {most}"
    of = " of its launch and switches" if group.reason == "too little work" else ""
    return f", {amount} short{of}"


def _placed(placed: Iterable[Placed]) -> str:
    counts = Counter(plain(op.kind) for op in placed).most_common()
    text = ", ".join(f"{count:,} {kind}" for kind, count in counts[:_KINDS])
    more = sum(count for _, count in counts[_KINDS:])
    return f"{text}, {counted(more, 'other')}" if more else text


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"  - and {count:,} more {what}; --json has all of them"


def _ms(value: float) -> str:
    # Sums in another order differ in their last bits.
    return f"{round(value, 9) + 0.0:.4g} ms"
