"""Verdict of the placement gate: on Core ML's own plan, or on a forecast for a system."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pytest_ane.gates.placement.forecast import Forecast, Key, Match, Work, allows, estimated_work
from pytest_ane.gates.placement.measure import Placement, PredictedPlan
from pytest_ane.gates.placement.plans import Plan, PlannedOperation, Summary, plain, summarise
from pytest_ane.gates.placement.rules import Outcome, find
from pytest_ane.gates.placement.rules._base import kinds
from pytest_ane.gates.placement.segmenter import MOVES, Placed, Predicted
from pytest_ane.gates.verdict import (
    Cell,
    Column,
    Figure,
    Finding,
    Severity,
    Table,
    Verdict,
    Where,
    counted,
    rounded,
)
from pytest_ane.manifest.policy import PlacementPolicy, newest_specification
from pytest_ane.mlprogram.text import printable

_plain = partial(printable, longest=300)

_KINDS = {
    "conv": kinds("conv conv_quantized conv_transpose"),
    "products": kinds("einsum linear matmul scaled_dot_product_attention"),
    "norms": kinds(
        "batch_norm instance_norm l2_norm layer_norm local_response_norm "
        "reduce_l2_norm reduce_mean reduce_sum_square rsqrt"
    ),
}
REQUIRED = kinds("gru lstm rnn softmax").union(*_KINDS.values())
"""Op types that people ask for on the ANE, whatever their work; norms by their parts."""
_TIE = 1e-9
"""ms; units whose costs differ by less are told apart by rounding alone."""
_DECIDE = ("failed", "unproven")
_CAUSES = {"unsupported": "not supported", "neighbour": "pulled along"}
"""The cost model's words for people."""
_OWN = 0.01
"""Share of the work that may be off the ANE where the policy says nothing, of own packages."""


def judge(
    measurement: Placement, policy: PlacementPolicy, subject: str, *, own: bool = False
) -> Verdict:
    """Where a shard runs, by Core ML's plan, of which only preferred devices count, or a forecast.

    `own` packages may have a little work off the ANE where the policy does not say how much.
    `unproven` where there was no compute op to ask about, or the plan proves nothing.
    `ManifestError` where the policy names no system, which decides the size rule of a forecast.
    """
    most = policy.max_work_off_ane
    most = _OWN * own if most is None else most
    if isinstance(measurement, Plan):
        return _of_plan(measurement, policy, subject, most)
    forecast = measurement.under(policy.os).allowing((*policy.allow_off, *policy.off_ane))
    return _of_forecast(forecast, policy, subject, most)


class _Excused(NamedTuple):
    """Operations that may be off the ANE, as they do little; what is said of all lost ones."""

    keys: frozenset[Key] = frozenset()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()


def _excuse(lost: Iterable[tuple[str, str, str | None]], work: Work, most: float) -> _Excused:
    """Which of some lost operations, by function, name and type, are excused.

    None are where `most` is 0, or nobody knows the work. What is not in `work` was folded.
    """
    if not most or not work:
        return _Excused()
    # Of several with one name that which has to be on the ANE counts.
    named = sorted((kind is None or kind in REQUIRED, f, name) for f, name, kind in lost)
    keys = {(function, name): required for required, function, name in named}
    totals = ((sum(each.get(k, 0.0) for k in keys), sum(each.values())) for each in work)
    share = max(part / (whole or 1.0) for part, whole in totals)
    small = {key for key in keys if share <= most or not any(each.get(key) for each in work)}
    says = f"{share:.1%} of the estimated work is off the ANE, above max-work-off-ane = {most:g}"
    figure = Figure("work_off_ane", share, "%", "work off the ANE", limit=most, good="below")
    finding = Finding("failed", says, figure=figure.name)
    return _Excused(
        frozenset(key for key in small if not keys[key]),
        (figure,) * bool(share),
        (finding,) * (share > most),
    )


def figures(plan: Plan) -> tuple[Figure, ...]:
    """Compute ops by device, convolutions, and what was not counted."""
    summary = summarise(plan)
    devices, compute = summary.devices, summary.compute
    ane, gpu, cpu = (devices.get(device, 0) for device in ("ANE", "GPU", "CPU"))
    convs = summary.conv_total
    return (
        Figure("instrument", "plan"),
        Figure("format", plan.source),
        Figure("outcome", summary.outcome),
        Figure("ane_ops", ane, "ops on the ANE", of=compute, shown=True),
        Figure("compute_ops", compute, "ops"),
        Figure("gpu_ops", gpu, "ops on the GPU", shown=gpu > 0),
        Figure("cpu_ops", cpu, "ops on the CPU", shown=cpu > 0),
        *([Figure("conv_ane", summary.conv_ane or 0, "convolutions on the ANE", of=convs)]
          if convs else []),
        _by_device(
            ((op.op or "", op.preferred or "none") for _, op in plan.walk()
             if not (op.boundary or op.compile_time or op.folded)), summary,
        ),
        Figure("unassigned_ops", summary.unassigned, "ops without a device",
               shown=summary.unassigned > 0),
        *(Figure(name, count, unit, shown=True) for name, count, unit in (
            ("folded_ops", summary.folded, "ops folded by the compiler"),
            ("added_ops", sum(summary.added.values()), "ops added by the compiler"),
            ("renamed_ops", summary.renamed, "ops renamed by the compiler"),
        ) if count),
        Figure("boundary_casts", summary.boundary_casts, "boundary ops"),
        Figure("compile_time_ops", sum(summary.compile_time.values()), "compile-time ops"),
    )  # fmt: skip


def _of_plan(plan: Plan, policy: PlacementPolicy, subject: str, most: float) -> Verdict:
    summary, allow_off = summarise(plan), (*policy.allow_off, *policy.off_ane)
    predictions = plan.predictions if isinstance(plan, PredictedPlan) else ()
    off = [each for each in summary.off if not allows(allow_off, each[1].name, each[1].op or "")]
    # Core ML's own estimates, which are part of the plan; where it has none nothing is excused.
    costs = {(f, op.name): 0.0 if op.op in MOVES else op.cost for f, op in plan.walk()}
    known = {key: cost for key, cost in costs.items() if cost is not None}
    lost = ((f, op.name, op.op if (f, op.name) in known else None) for f, op in off)
    excused = _excuse(lost, (known,) if known else (), most)
    off = [(f, op) for f, op in off if (f, op.name) not in excused.keys]
    allowed = len(summary.off) - len(off)
    texts = {text for _, op in plan.walk() for text in (op.name, op.op or "")}
    heads = tuple(map(Column, ("op", "name", "function", "device", "supported", "why")))
    rows = [
        (plain(op.op or "operation"), plain(op.name), plain(function), op.preferred or "none",
         ", ".join(op.supported), plain(op.why))
        for function, op in summary.off
    ]  # fmt: skip
    off_ane = Table("compute ops that are not on the ANE", heads, tuple(rows), "off_ane")
    elsewhere = contradictions(plan, predictions)
    tables = [*([off_ane] if rows else []), *elsewhere]
    tables += [*(assumptions(predictions) if elsewhere else ()), *plan_table(plan, predictions)]
    findings = [*_off_the_ane(summary, off)]
    findings += excused.findings if summary.inconclusive is None else ()
    findings += [
        _on_the_ane("failed", op.op or "operation", op.name, "runs")
        for _, op in plan.walk()
        if op.preferred == "ANE" and allows(policy.off_ane, op.name, op.op or "")
    ]
    findings += _unmatched(policy, texts)
    answer = () if summary.inconclusive else (_answer(len(off), summary.compute, "Core ML's plan"),)
    return Verdict(
        "placement", subject,
        (*answer, *figures(plan), *_allowed(allowed), *excused.figures,
         *predicted_figures(predictions)),
        (*findings, *_too_new(plan.version, policy)), tuple(tables), basis="plan",
    )  # fmt: skip


def _answer(off: int, compute: int, why: str, undecided: Sequence[Placed] = ()) -> Figure:
    """Whether it runs on the ANE, in words: `off` operations that have to do not, and says who."""
    count = counted(compute, "op")
    if off:
        return Figure("answer", "off the ANE", note=f"{off:,} of {count}, {why}", shown=True)
    if undecided:
        tie = any(op.margin is not None and op.margin < _TIE for op in undecided)
        note = why.replace("predicted", "tie") if tie else why
        return Figure("answer", "undecided", note=note, shown=True)
    return Figure("answer", "on the ANE", note=why, shown=True)


def _by_device(ops: Iterable[tuple[str, str]], plan: Summary | None = None) -> Figure:
    """`conv_ane=36/36 conv_non_ane=0, products 12 ANE, rest 30 ANE 2 CPU`, of types and devices.

    A plan may have counts of convolutions alone, or know of no types.
    """
    groups: dict[str, Counter[str]] = {name: Counter() for name in (*_KINDS, "rest")}
    for kind, device in ops:
        name = next((name for name, of in _KINDS.items() if kind in of), "rest")
        groups[name][device] += 1
    convs = groups.pop("conv")
    ane, total = convs["ANE"], convs.total()
    if plan is not None:
        ane, total = plan.conv_ane or 0, plan.conv_total or 0
    said = [f"conv_ane={ane}/{total} conv_non_ane={total - ane}"]
    for name, devices in groups.items():
        counts = " ".join(f"{count} {device}" for device, count in devices.most_common())
        said += [f"{name} {counts}"] if counts else []
    return Figure("by_device", ", ".join(said), shown=True)


def _foreseen(forecast: Forecast, policy: PlacementPolicy) -> Iterator[Figure]:
    """The answer by the weakest prediction, with devices; by rules where they forbid an op.

    By rules, too, where nothing is predicted.
    What does a hundredth of the work decides nothing, unless people ask for it on the ANE.
    """
    weakest = next(iter(forecast.predictions), None)
    off = forecast.ineligible()
    if off or weakest is None or weakest.prediction.total_ms is None:
        yield _answer(off, forecast.compute_ops, "by rules alone")
        return
    allow_off = (*policy.allow_off, *policy.off_ane)
    asked = [op for op in weakest.compute if not allows(allow_off, op.name, op.kind)]
    parts = [[op for op in asked if op.undecided],
             [op for op in asked if not op.undecided and op.unit != "ANE"]]  # fmt: skip
    work = estimated_work([weakest])
    for part in parts:
        lost = ((_plain(weakest.function), _plain(op.name), op.kind) for op in part)
        small = _excuse(lost, work, _OWN).keys
        part[:] = [op for op in part if (_plain(weakest.function), _plain(op.name)) not in small]
    undecided, away = parts
    at = f", T = {weakest.tokens}" if weakest.tokens is not None else ""
    why = f"predicted: {weakest.prediction.chip}, {weakest.prediction.system}{at}"
    causes = Counter(_CAUSES.get(op.off.cause, op.off.cause) for op in away if op.off)
    cause = "".join(f"{each}, " for each, _ in causes.most_common(1))
    yield _answer(len(away), len(weakest.compute), f"{cause}{why}", undecided)
    units = ((op.kind, "undecided" if op.undecided else str(op.unit)) for op in weakest.compute)
    yield _by_device(units)


def _allowed(count: int) -> Iterator[Figure]:
    if count:
        yield Figure("allowed_off_ops", count, "ops allowed off the ANE", shown=True)


def _unmatched(policy: PlacementPolicy, texts: Collection[str]) -> Iterator[Finding]:
    """A pattern that no operation has: a slip of the pen, or for another shard of the model."""
    for key, patterns in (("allow-off", policy.allow_off), ("off-ane", policy.off_ane)):
        for pattern in patterns:
            if not any(allows((pattern,), text, text) for text in texts):
                says = f"policy.placement.{key} has {pattern!r}, and no op has this name or type"
                yield Finding("note", says, remedy="correct it, or take it out")


def _on_the_ane(severity: Severity, kind: str, name: str, verb: str) -> Finding:
    rest = "on the ANE, where policy.placement.off-ane does not have it"
    remedy = "split it from what runs on the ANE, in a package for CPU_AND_GPU or CPU_ONLY"
    reason = f"{plain(kind)} `{plain(name)}` {verb} {rest}"
    return Finding(severity, reason, Where(op=plain(name)), remedy, f"are {rest}")


def _too_new(version: int, policy: PlacementPolicy) -> Iterator[Finding]:
    """An artifact that a system refuses, by its specification version; 0 for an unknown one."""
    asked = {}
    if (most := policy.spec_version) is not None:
        asked[f"spec-version = {most}"] = most
    if policy.min_os is not None:
        newest = newest_specification(policy.min_os)
        asked[f"min-os = {policy.min_os!r}, which loads {newest} at most"] = newest
    for text, most in asked.items():
        if not version:
            reason = f"The artifact's specification version is not known, for {text}"
            yield Finding("unproven", reason, remedy="give the package itself")
        elif version > most:
            remedy = "convert it with an older minimum_deployment_target"
            reason = f"The artifact has specification version {version}, above {text}"
            yield Finding("failed", reason, remedy=remedy)


def _off_the_ane(
    summary: Summary, lost: Sequence[tuple[str, PlannedOperation]]
) -> Iterator[Finding]:
    if summary.inconclusive is not None:
        reason, remedy = summary.inconclusive
        yield Finding("unproven", reason, remedy=remedy)
        return
    off = [op for _, op in lost]
    for op in filter(lambda op: op.name, off):
        name, rest = plain(op.name), f"on the {op.preferred} instead of the ANE"
        one, several = ("runs", "run") if op.preferred else ("has", "have")
        rest = rest if op.preferred else "no device"
        reason = f"{plain(op.op or 'operation')} `{name}` {one} {rest}"
        yield Finding("failed", reason, Where(op=name), kind=f"{several} {rest}")
    if count := summary.elsewhere + sum(not op.name for op in off):
        verb = "op is" if count == 1 else "ops are"
        yield Finding("failed", f"{count:,} of {summary.compute:,} {verb} not on the ANE")


def _of_forecast(forecast: Forecast, policy: PlacementPolicy, subject: str, most: float) -> Verdict:
    texts = {op.name for op in forecast.ops} | forecast.compute.keys()
    lost = ((op.function, op.name, op.type) for op in forecast.lost())
    excused = _excuse(lost, forecast.work, most)
    forecast = forecast.excusing(excused.keys)
    findings = [*_findings(forecast), *excused.findings, *_unmatched(policy, texts)]
    findings += [*_foreseen_on(forecast, policy), *_too_new(forecast.version, policy)]
    findings += [Finding("note", what, remedy=remedy) for what, remedy in forecast.expansions]
    if policy.require == "predicted":
        if not forecast.predictions:
            findings.append(Finding("unproven", "Nothing is predicted of this program"))
        ruled_out = {match.op for match in forecast.of("ineligible")}
        wanted = _required(forecast.predictions, (*policy.allow_off, *policy.off_ane), most)
        findings += [each for each in wanted if each.where.op not in ruled_out]
    if forecast.outcome == "unproven":
        reason = "The program has no compute op, so there is nothing to place"
        remedy = "check that the artifact is the one that was built"
        findings.append(Finding("unproven", reason, remedy=remedy))
    answer, *devices = _foreseen(forecast, policy)
    if answer.value == "off the ANE" and not any(f.severity in _DECIDE for f in findings):
        reason = f"It is predicted off the ANE, though the rules allow it ({answer.note})"
        remedy = "see `pytest-ane explain` for fixes, or record a plan on a Mac"
        findings.append(Finding("warned", reason, remedy=remedy, figure="answer"))
    numbers = (answer, *_figures(forecast, policy.os), *excused.figures, *devices)
    return Verdict(
        "placement", subject, (*numbers, *predicted_figures(forecast.predictions)),
        tuple(findings),
        (*_tables(forecast), *assumptions(forecast.predictions), *forecast_table(forecast)),
        basis="forecast",
    )  # fmt: skip


def _foreseen_on(forecast: Forecast, policy: PlacementPolicy) -> Iterator[Finding]:
    """Ops that must be off the ANE: predicted on it they fail, and undecided they are unproven."""
    off = {match.index for match in (*forecast.of("allowed"), *forecast.of("ineligible"))}
    placed = _by_name(forecast.predictions)
    for op in forecast.ops:
        if off & {op.index, op.inside} or not allows(policy.off_ane, op.name, op.type):
            continue
        foreseen = placed.get((plain(op.function), plain(op.name)))
        if foreseen is None or foreseen.undecided:
            yield _on_the_ane("unproven", op.type, op.name, "may run")
        elif foreseen.unit == "ANE":
            yield _on_the_ane("failed", op.type, op.name, "is predicted")


def _figures(forecast: Forecast, os: str) -> Iterator[Figure]:
    compute, off, warned = forecast.compute_ops, forecast.ineligible(), forecast.warned()
    allowed = forecast.allowed()
    warnings = [match for match in forecast.of("warned") if match.index is not None]
    convs = forecast.compute.get("conv", 0)
    kinds = ", ".join(f"{count} {kind}" for kind, count in forecast.left_out.items())
    yield Figure("instrument", "forecast")
    yield Figure("outcome", forecast.outcome)
    yield Figure("os", os)
    yield Figure("likely_ane_ops", compute - off - warned - allowed, "ops eligible by rules",
                 of=compute, shown=True)  # fmt: skip
    yield Figure("compute_ops", compute, "ops")
    yield Figure("ineligible_ops", off, "ops ineligible")
    unit = "ops likely on the CPU" if _to_cpu(warnings) else "ops with a warning"
    types = ", ".join(dict.fromkeys(match.type for match in warnings))
    yield Figure("warned_ops", warned, unit, note=types, shown=warned > 0)
    yield from _allowed(allowed)
    yield Figure("conv_eligible", forecast.eligible("conv"), "convolutions eligible", of=convs)
    yield Figure("conv_total", convs, "convolutions")
    yield Figure("left_out_ops", sum(forecast.left_out.values()), "ops left out", note=kinds)
    yield Figure("size_bytes", forecast.size_bytes, "bytes")
    yield Figure("rules", " ".join(sorted({match.rule for match in forecast.of("ineligible")})))


def _to_cpu(matches: Sequence[Match]) -> bool:
    rules = [find(match.rule, "warned") for match in matches]
    return all(rule and "CPU" in rule.consequence for rule in rules)


def _findings(forecast: Forecast) -> Iterator[Finding]:
    """Matches by rule, in order of their ids; ops before the casts that are there for them."""
    for outcome, severity, word in _OUTCOMES:
        for match in sorted(forecast.of(outcome), key=lambda m: (m.rule, m.type == "cast")):
            rule = find(match.rule, match.outcome)
            title = _lower(rule.title.rstrip(".")) if rule else "a rule this version does not have"
            inside = f" in {function}" if (function := _outside_main(match)) else ""
            why = _lower(match.why.rstrip("."))
            reason = f"{match.type} `{match.op}`{inside} is {word} ({match.rule}): {why}"
            where, kind = Where(op=match.op), f"are {word} ({match.rule}: {title})"
            if match.index is None:
                where, kind = Where(), ""
            yield Finding(severity, reason, where, rule.fix if rule else "", kind)


def _tables(forecast: Forecast) -> Iterator[Table]:
    matches = sorted(forecast.matches, key=lambda m: (m.outcome, m.rule, m.type == "cast"))
    if not matches:
        return
    heads = tuple(map(Column, ("rule", "outcome", "op", "name", "function", "reason")))
    rows = tuple((m.rule, m.outcome, m.type, m.op, _outside_main(m), m.why) for m in matches)
    yield Table("operations that a rule applies to", heads, rows, "matches")
    texts = []
    for key in dict.fromkeys((m.rule, m.outcome) for m in matches):
        if rule := find(*key):
            seen = ("", "seen", f"{rule.consequence} ({rule.scope})")
            texts += [(rule.id, "rule", rule.title), seen]
            texts += [("", "source", rule.source), ("", "fix", rule.fix)]
    yield Table("the rules", (Column("id"), Column(""), Column("")), tuple(texts), "rules")


def _outside_main(match: Match) -> str:
    return "" if match.function == "main" else match.function


def _lower(sentence: str) -> str:
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def predicted_figures(predictions: Sequence[Predicted]) -> Iterator[Figure]:
    """`58 of 58 compute ops on the ANE in 1 segment (M4, macOS 27)`, by the weakest prediction."""
    if not predictions:
        return
    weakest = predictions[0]
    prediction, compute = weakest.prediction, weakest.compute
    if prediction.total_ms is None:
        why = next((p.unknown for p in predictions if p.unknown), "")
        what = f"nothing: {plain(why or 'shapes are known only at run time')}"
        yield Figure("predicted", what, label="predicted", shown=True)
        return
    at = f", T = {weakest.tokens}" if weakest.tokens is not None else ""
    segments = counted(sum(segment.unit == "ANE" for segment in prediction.segments), "segment")
    undecided = sum(op.undecided for op in compute)
    yield Figure(
        "predicted_ane_ops", sum(op.unit == "ANE" for op in compute),
        f"compute ops on the ANE in {segments}", "predicted:", of=len(compute),
        note=f"{prediction.chip}, {prediction.system}{at}", shown=True,
    )  # fmt: skip
    yield Figure("predicted_undecided_ops", undecided, "ops undecided", shown=undecided > 0)
    yield Figure("predicted_segments", len(prediction.segments), "segments")
    if prediction.margin is not None:
        yield Figure("predicted_margin", prediction.margin / 1000, "s", "margin", shown=True)


def _required(
    predictions: Sequence[Predicted], allow_off: Sequence[str], most: float
) -> Iterator[Finding]:
    """Under `require = "predicted"`: failed off the ANE, unproven where undecided; once an op."""
    judged = [
        (predicted, op)
        for predicted in predictions
        if predicted.prediction.total_ms is not None
        for op in predicted.compute
        if not allows(allow_off, op.name, op.kind) and (op.undecided or op.unit != "ANE")
    ]
    lost = ((_plain(predicted.function), _plain(op.name), op.kind) for predicted, op in judged)
    excused = _excuse(lost, estimated_work(predictions), most)
    yield from excused.findings
    told = {*excused.keys}
    for predicted, op in sorted(judged, key=lambda pair: pair[1].undecided):
        if (key := (_plain(predicted.function), _plain(op.name))) in told:
            continue
        told.add(key)
        at = f" at T = {predicted.tokens}" if predicted.tokens is not None else ""
        state = "undecided" if op.undecided else f"predicted on the {op.unit}"
        yield Finding(
            "unproven" if op.undecided else "failed",
            f"{plain(op.kind)} `{plain(op.name)}` is {state}{at}: {reason_of(op)}",
            Where(op=plain(op.name)),
            "see `pytest-ane explain` for fixes, or name what may be off the ANE in "
            "policy.placement.allow-off",
            f"are {state}{at}",
        )
    reasons: dict[str, str] = {}
    for predicted in predictions:
        if predicted.prediction.total_ms is None:
            why = predicted.unknown or "Core ML makes no estimates of this program"
            reasons.setdefault(predicted.function, why)
        elif not predicted.compute:
            reasons.setdefault(predicted.function, "Core ML folds all its ops into constants")
    for function, why in reasons.items():
        reason = f"Nothing is predicted of function {plain(function)}: {plain(why)}"
        remedy = "give its inputs shapes that are known, or record a plan on a Mac"
        yield Finding("unproven", reason, remedy=remedy)


def assumptions(predictions: Sequence[Predicted]) -> tuple[Table, ...]:
    """What the predictions rest on without data."""
    sentences = dict.fromkeys(s for p in predictions for s in p.prediction.no_data)
    rows = tuple((plain(sentence),) for sentence in sentences)
    title = "what the prediction has no data on"
    return (Table(title, (Column("assumption"),), rows, "assumptions"),) if rows else ()


def contradictions(plan: Plan, predictions: Sequence[Predicted]) -> tuple[Table, ...]:
    """Operations that a plan places elsewhere than every prediction that is decided."""
    units: dict[Key, set[str]] = {}
    margins: dict[Key, float | None] = {}
    for predicted in predictions:
        for op in predicted.compute:
            key = (predicted.function, op.name)
            decided = {op.unit} if op.unit and not op.undecided else {"ANE", "CPU", "GPU"}
            units.setdefault(key, set()).update(map(str, decided))
            margins[key] = op.margin
    rows = []
    for function, planned in plan.walk():
        key, device = (function, planned.name), planned.preferred
        if device and device not in units.get(key, {device}):
            names = (plain(planned.op or "operation"), plain(planned.name), device)
            rows.append((*names, " or ".join(sorted(units[key])), margins[key]))
    columns = tuple(map(Column, ("op", "name", "plan", "predicted", "margin, ms")))
    title = "compute ops that the plan places elsewhere than predicted"
    return (Table(title, columns, tuple(rows), "contradictions"),) if rows else ()


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


_OUTCOMES: tuple[tuple[Outcome, Severity, str], ...] = (
    ("ineligible", "failed", "ineligible"),
    ("warned", "note", "warned of"),
)
_COLUMNS = (
    *map(Column, ("op", "type", "function", "forecast", "predicted", "recorded")),
    Column("predicted time", "s"),
    Column("why"),
)


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
        # What is allowed off the ANE is ineligible all the same.
        off = any(match.outcome in ("ineligible", "allowed") for match in of)
        word = "ineligible" if off else "likely CPU" if of and _to_cpu(of) else "eligible"
        why = [f"{m.rule}, allowed" if m.outcome == "allowed" else m.rule for m in of]
        placed = predicted.get((plain(op.function), plain(op.name)))
        rows.append(_row((op.name, op.type, op.function), word, None, placed, why))
    yield from _table(rows)


def plan_table(plan: Plan, predictions: Sequence[Predicted]) -> Iterator[Table]:
    """Operations of a recorded plan; `none` is no device. The rules were not asked."""
    predicted = _by_name(predictions)
    rows = []
    for f, op in plan.walk():
        if not (op.boundary or op.compile_time):
            function, name, kind = map(plain, (f, op.name, op.op or ""))
            device = None if op.folded else op.preferred or "none"
            why = ["left out by the compiler"] * op.folded + [plain(op.why)] * bool(op.why)
            placed = predicted.get((function, name))
            rows.append(_row((name, kind, function), None, device, placed, why))
    yield from _table(rows)


def _by_name(predictions: Sequence[Predicted]) -> Mapping[Key, Placed]:
    """Predicted operations; of several T those of the one that is likeliest to leave the ANE."""
    placed: dict[Key, Placed] = {}
    for predicted in predictions:
        if predicted.prediction.total_ms is not None:
            for op in predicted.compute:
                placed.setdefault((plain(predicted.function), plain(op.name)), op)
    return placed


def _row(
    names: tuple[str, str, str], forecast: str | None, recorded: str | None,
    placed: Placed | None, why: list[str],
) -> tuple[Cell, ...]:  # fmt: skip
    if placed is None:
        return (*names, forecast, None, recorded, None, "; ".join(why))
    unit = "" if placed.undecided else placed.unit
    duration = None if placed.ms is None else rounded(placed.ms / 1000)
    reasons = [*why, reason_of(placed)] if unit != "ANE" else why
    return (*names, forecast, unit, recorded, duration, "; ".join(reasons))


def _table(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Table]:
    if rows:
        yield Table("the program", _COLUMNS, tuple(rows), "program", listed=False)
