"""Verdict of the placement gate: on Core ML's own plan, or on a forecast for a system."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pytest_ane.gates.placement._predicted import (
    assumptions,
    contradictions,
    forecast_table,
    plan_table,
    predicted_figures,
    required,
)
from pytest_ane.gates.placement.forecast import Forecast, Match, allows
from pytest_ane.gates.placement.measure import Placement, PredictedPlan
from pytest_ane.gates.placement.plans import Plan, Summary, plain, summarise
from pytest_ane.gates.placement.rules import find
from pytest_ane.gates.verdict import Column, Figure, Finding, Severity, Table, Verdict, Where
from pytest_ane.manifest.policy import PlacementPolicy


def judge(measurement: Placement, policy: PlacementPolicy, subject: str) -> Verdict:
    """The verdict on where a shard runs.

    Args:
        measurement: Core ML's plan, of which only preferred devices count, or a forecast.
        policy: names the system the shard is for, which decides the size rule of a forecast;
            whether a prediction must put every op on the ANE; and ops that may be off it.
        subject: qualified shard id.

    Returns:
        `unproven` where there was no compute op to ask about, or the plan proves nothing.

    Raises:
        ManifestError: the policy names no system.
    """
    if isinstance(measurement, Plan):
        return _of_plan(measurement, policy, subject)
    return _of_forecast(measurement.under(policy.os).allowing(policy.allow_off), policy, subject)


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
        *([Figure("conv_ane", summary.conv_ane or 0, "convolutions on the ANE", of=convs,
                  shown=True)] if convs else []),
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


def _of_plan(plan: Plan, policy: PlacementPolicy, subject: str) -> Verdict:
    summary = summarise(plan)
    predictions = plan.predictions if isinstance(plan, PredictedPlan) else ()
    allowed = [op for _, op in summary.off if allows(policy.allow_off, op.name, op.op or "")]
    heads = ("op", "name", "function", "device", "supported")
    columns = tuple(map(Column, (*heads, "why") if any(op.why for _, op in summary.off) else heads))
    elsewhere = contradictions(plan, predictions)
    rows = tuple(
        (
            plain(op.op or "operation"),
            plain(op.name),
            plain(function),
            op.preferred or "none",
            ", ".join(op.supported),
            plain(op.why),
        )[: len(columns)]
        for function, op in summary.off
    )
    return Verdict(
        gate="placement",
        subject=subject,
        figures=(*figures(plan), *_allowed(len(allowed)), *predicted_figures(predictions)),
        findings=(
            *_off_the_ane(summary, policy.allow_off),
            *_unmatched(
                policy.allow_off,
                {op.name for _, op in plan.walk()},
                {op.op or "" for _, op in plan.walk()},
            ),
        ),
        tables=(
            *(
                [Table("compute ops that are not on the ANE", columns, rows, "off_ane")]
                if rows
                else []
            ),
            *elsewhere,
            *(assumptions(predictions) if elsewhere else ()),
            *plan_table(plan, predictions),
        ),
        basis="plan",
    )


def _allowed(count: int) -> Iterator[Figure]:
    if count:
        yield Figure("allowed_off_ops", count, "ops allowed off the ANE", shown=True)


def _unmatched(
    patterns: Sequence[str], names: Collection[str], kinds: Collection[str]
) -> Iterator[Finding]:
    """A pattern that no operation has: a slip of the pen, or for another shard of the model."""
    for pattern in patterns:
        if not any(allows((pattern,), text, text) for text in (*names, *kinds)):
            yield Finding(
                "note",
                f"policy.placement.allow-off has {pattern!r}, and no op has this name or type",
                remedy="correct it, or take it out",
            )


def _off_the_ane(summary: Summary, allow_off: Sequence[str]) -> Iterator[Finding]:
    if summary.inconclusive is not None:
        reason, remedy = summary.inconclusive
        yield Finding("unproven", reason, remedy=remedy)
        return
    off = [op for _, op in summary.off if not allows(allow_off, op.name, op.op or "")]
    unnamed = [op for op in off if not op.name]
    for op in off:
        if op.name:
            name = plain(op.name)
            one, several, rest = (
                ("runs", "run", f"on the {op.preferred} instead of the ANE")
                if op.preferred
                else ("has", "have", "no device")
            )
            reason = f"{plain(op.op or 'operation')} `{name}` {one} {rest}"
            yield Finding("failed", reason, Where(op=name), kind=f"{several} {rest}")
    if count := summary.elsewhere + len(unnamed):
        verb = "op is" if count == 1 else "ops are"
        yield Finding("failed", f"{count:,} of {summary.compute:,} {verb} not on the ANE")


def _of_forecast(forecast: Forecast, policy: PlacementPolicy, subject: str) -> Verdict:
    findings = (
        *_findings(forecast),
        *_unmatched(policy.allow_off, {op.name for op in forecast.ops}, forecast.compute),
        *(_required(forecast, policy) if policy.require == "predicted" else ()),
    )
    if forecast.outcome == "unproven":
        reason = "The program has no compute op, so there is nothing to place"
        remedy = "check that the artifact is the one that was built"
        findings = (*findings, Finding("unproven", reason, remedy=remedy))
    return Verdict(
        gate="placement",
        subject=subject,
        figures=(*_figures(forecast, policy.os), *predicted_figures(forecast.predictions)),
        findings=findings,
        tables=(
            *_tables(forecast),
            *assumptions(forecast.predictions),
            *forecast_table(forecast),
        ),
        basis="forecast",
    )


def _required(forecast: Forecast, policy: PlacementPolicy) -> Iterator[Finding]:
    """What the prediction says of ops that no rule has made red already."""
    if not forecast.predictions:
        yield Finding("unproven", "Nothing is predicted of this program")
    ruled_out = {match.op for match in forecast.of("ineligible")}
    for finding in required(forecast.predictions, policy.allow_off):
        if finding.where.op not in ruled_out:
            yield finding


def _figures(forecast: Forecast, os: str) -> Iterator[Figure]:
    compute, off, warned = forecast.compute_ops, forecast.ineligible(), forecast.warned()
    allowed = forecast.allowed()
    types = ", ".join(dict.fromkeys(m.type for m in forecast.of("warned") if m.index is not None))
    rules = [find(m.rule, "warned") for m in forecast.of("warned") if m.index is not None]
    to_cpu = all(rule and "CPU" in rule.consequence for rule in rules)
    convs = forecast.compute.get("conv", 0)
    yield Figure("instrument", "forecast")
    yield Figure("outcome", forecast.outcome)
    yield Figure("os", os)
    yield Figure("likely_ane_ops", compute - off - warned - allowed, "ops for the ANE", of=compute,
                 shown=True)  # fmt: skip
    yield Figure("compute_ops", compute, "ops")
    yield Figure("ineligible_ops", off, "ops ineligible")
    unit = "ops likely on the CPU" if to_cpu else "ops with a warning"
    yield Figure("warned_ops", warned, unit, note=types, shown=warned > 0)
    yield from _allowed(allowed)
    yield Figure("conv_eligible", forecast.eligible("conv"), "convolutions eligible", of=convs)
    yield Figure("conv_total", convs, "convolutions")
    kinds = ", ".join(f"{count} {kind}" for kind, count in forecast.left_out.items())
    yield Figure("left_out_ops", sum(forecast.left_out.values()), "ops left out", note=kinds)
    yield Figure("size_bytes", forecast.size_bytes, "bytes")
    yield Figure("rules", " ".join(sorted({match.rule for match in forecast.of("ineligible")})))


def _findings(forecast: Forecast) -> Iterator[Finding]:
    """Matches by rule, in order of their ids; ops before the casts that are there for them."""
    outcomes: tuple[tuple[str, Severity, str], ...] = (
        ("ineligible", "failed", "ineligible"),
        ("warned", "note", "warned of"),
    )
    for outcome, severity, word in outcomes:
        matches = [match for match in forecast.matches if match.outcome == outcome]
        for match in sorted(matches, key=lambda m: (m.rule, m.type == "cast")):
            rule = find(match.rule, match.outcome)
            title = _lower(rule.title.rstrip(".")) if rule else "a rule this version does not have"
            inside = f" in {function}" if (function := _outside_main(match)) else ""
            yield Finding(
                severity,
                f"{match.type} `{match.op}`{inside} is {word} ({match.rule}): "
                f"{_lower(match.why.rstrip('.'))}",
                Where(op=match.op) if match.index is not None else Where(),
                rule.fix if rule else "",
                f"are {word} ({match.rule}: {title})" if match.index is not None else "",
            )


def _tables(forecast: Forecast) -> Iterator[Table]:
    """The operations that rules apply to, and where the rules come from."""
    matches = sorted(forecast.matches, key=lambda m: (m.outcome, m.rule, m.type == "cast"))
    if not matches:
        return
    heads = ("rule", "outcome", "op", "name", "function", "reason")
    yield Table(
        "operations that a rule applies to",
        tuple(map(Column, heads)),
        tuple((m.rule, m.outcome, m.type, m.op, _outside_main(m), m.why) for m in matches),
        "matches",
    )
    known = dict.fromkeys((match.rule, match.outcome) for match in matches)
    rows: list[tuple[str, str, str]] = []
    for key in known:
        if rule := find(*key):
            rows += [
                (rule.id, "rule", rule.title),
                ("", "seen", f"{rule.consequence} ({rule.scope})"),
                ("", "source", rule.source),
                ("", "fix", rule.fix),
            ]
    yield Table("the rules", (Column("id"), Column(""), Column("")), tuple(rows), "rules")


def _outside_main(match: Match) -> str:
    return "" if match.function == "main" else match.function


def _lower(sentence: str) -> str:
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]
