"""Verdict of the fidelity gate: thresholds held against comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_ane.gates.arithmetics import in_arithmetic
from pytest_ane.gates.fidelity._records import (
    CONTRIBUTIONS,
    COSINES,
    FIRST_COSINE,
    MAX_RELATIVE_L2,
    MEAN_COSINE,
    METRICS,
    MIN_CONTRIBUTION,
    MIN_COSINE,
    Comparison,
    Fidelity,
    Group,
    Metric,
    greatest_l2,
    threshold,
    values_of,
)
from pytest_ane.gates.fidelity._split import (
    compression_finding,
    cost_figures,
    split_figures,
    split_findings,
    split_limits,
)
from pytest_ane.gates.verdict import (
    Bound,
    Cell,
    Column,
    Figure,
    Finding,
    Limits,
    Table,
    Verdict,
    Where,
    counted,
    nothing,
    rounded,
    some,
)
from pytest_ane.manifest.policy import FidelityPolicy, OutputPolicy
from pytest_ane.mlprogram import fp16

_BURIED = 256
"""How many times larger a residual path may be; beyond, what is left is fp16's rounding."""
_NAMED = 5
"""Positions that are named; the rest is counted."""


def judge(
    fidelity: Fidelity, policy: FidelityPolicy, subject: str, *, own: bool = False
) -> Verdict:
    """Passed only if something was compared, and everything compared is close and finite.

    Args:
        fidelity: the measurement.
        policy: its thresholds.
        subject: the shard.
        own: whether the artifact is the user's own, so that what an error budget calls compression
            may be another function: nobody knows that it was compressed from what is named.
    """
    if not fidelity.comparisons:
        reason = "No probe was run, so nothing was compared"
        remedy = "name probe kinds in shards.toml"
        return nothing("fidelity", subject, reason, remedy, provenance=fidelity.provenance)
    groups = _groups(fidelity, policy, own=own)
    split = tuple(split_findings(fidelity, policy, subject))
    findings = tuple(_findings(fidelity, policy, groups))
    cost = fidelity.budget and fidelity.budget.compression
    beyond = any(f.figure.startswith("cosine") for f in findings)
    if not split and (beyond or (cost and not math.isfinite(cost.rms))):
        split = tuple(filter(None, (compression_finding(fidelity, subject),)))
    verdict = Verdict(
        gate="fidelity",
        subject=subject,
        figures=(*_with_limits(fidelity, groups), *split_figures(fidelity, policy)),
        findings=(*split, *findings, *_left_out(fidelity), *_without(fidelity)),
        tables=tuple(tables(fidelity, groups)),
        provenance=fidelity.provenance,
    )
    return in_arithmetic(verdict, fidelity.arithmetic, fidelity.rules, cost_figures(fidelity))


def limits(policy: FidelityPolicy, *, own: bool) -> Limits:
    """What a policy asks of figures; arguments as of `judge`.

    Where outputs have thresholds of their own, those of metrics depend on which outputs there are.
    """
    made: dict[str, Bound] = {}
    for metric in () if policy.outputs else METRICS:
        limit = threshold(metric, policy.of_output(""), implied=own)
        if limit is not None:
            made[metric.figure] = Bound(limit, metric.good)
    return {**made, **split_limits(policy)}


def _left_out(fidelity: Fidelity) -> Iterator[Finding]:
    for covered in fidelity.coverage or () if fidelity.compared else ():
        if not covered.exercised:
            yield Finding(
                "unproven",
                f"The {covered.what} is not exercised: {covered.how}",
                remedy=covered.remedy,
                kind="are not exercised",
            )


def _without(fidelity: Fidelity) -> Iterator[Finding]:
    """Without an error budget why; without a reference, outputs that the input does not change."""
    if fidelity.compared and fidelity.unsplit:
        yield Finding("note", fidelity.unsplit)
    count = probes(fidelity.comparisons)
    for one in fidelity.unmoved or ():
        where = Where(output=one.output)
        if one.constant:
            yield Finding(
                "warned",
                f"Output {one.output} is the same whatever the input: no operation leads from one "
                "to it",
                where,
                "name a reference that has it",
                "are the same whatever the input",
            )
        elif one.how == "alone":
            yield Finding(
                "unproven",
                f"Whether output {one.output} depends on the input is not known: no two probes of "
                "one shape have different inputs",
                where,
                "set probes.count to 2 or more, or name more files",
                "may be the same whatever the input",
            )
        else:
            what = "zero" if one.how == "zero" else "the same"
            yield Finding(
                "warned" if one.whole else "failed",
                f"Output {one.output} is {what} in {counted(count, 'probe')}, whatever the input",
                where,
                "look for an input that conversion has frozen, weights that are missing, and "
                "values that underflow; where the inputs drawn are none that it takes, say what "
                "they hold; where it is right, name a reference that has it",
                f"are {what} in all probes",
            )


def figures(fidelity: Fidelity) -> tuple[Figure, ...]:
    """Numbers of all probes; those of position 0 of captured probes are called `first`."""
    all_, live = fidelity.comparisons, [c for c in fidelity.comparisons if c.live]
    largest = float(np.max([c.input_max for c in all_], initial=0.0))
    overflow = "fp16 overflows above 65,504" if largest > fp16.MAX else ""
    overflow = overflow or ("fp16 squares overflow above 255.9" if largest > fp16.MAX**0.5 else "")
    finite = Figure("finite", min((c.finite for c in all_), default=1.0), "%", "finite")
    return (
        *(
            (*_compared(fidelity), finite)
            if fidelity.compared
            else (replace(finite, note="no reference", shown=True),)
        ),
        Figure("probes", probes(all_), "probes", shown=True),
        Figure("probes.live", probes(live), "live probes",
               shown=fidelity.compared and probes(live) < probes(all_)),
        Figure("input.max", largest, label="max |x|", note=overflow, shown=largest != 0),
    )  # fmt: skip


def probes(comparisons: Sequence[Comparison]) -> int:
    """Probes, each of which may have several outputs."""
    return len({c.probe for c in comparisons})


def _compared(fidelity: Fidelity) -> Iterator[Figure]:
    kinds = dict.fromkeys(c.kind for c in fidelity.comparisons)
    rest, first = [c.rest for c in fidelity.comparisons], [c.first for c in fidelity.comparisons]
    for name, of in (("cosine", COSINES), ("contribution", CONTRIBUTIONS)):
        if values := values_of(rest, of):
            yield Figure(f"{name}.min", float(np.min(values)), label=name, shown=True)
            yield Figure(f"{name}.mean", float(np.mean(values)), label=f"mean {name}")
        for kind in kinds:
            if values := values_of((c for c in rest if c.kind == kind), of):
                yield Figure(f"{name}.{kind}.min", float(np.min(values)), label=f"{kind} {name}")
        if values := values_of(first, of):
            label = f"{name} at position 0"
            yield Figure(f"{name}.first.min", float(np.min(values)), label=label)
    if hidden := [c.residual for c in rest if c.residual is not None]:
        yield Figure("contribution.residual", float(np.max(hidden)), "x", "residual")
    if undecided := sum(len(c.undecided) for c in fidelity.comparisons):
        yield Figure("positions.undecided", undecided, "positions", "undecided between experts",
                     shown=True)  # fmt: skip
    if values := values_of(rest, MAX_RELATIVE_L2.of):
        yield Figure(MAX_RELATIVE_L2.figure, float(np.max(values)), label=MAX_RELATIVE_L2.label)
    if errors := [c.error_max for c in fidelity.comparisons if c.live]:
        yield Figure("error.max", float(np.max(errors)), label="absolute error")


def _groups(fidelity: Fidelity, policy: FidelityPolicy, *, own: bool = False) -> Groups:
    """Without positions that are not finite where the policy allows those."""
    groups: dict[OutputPolicy, list[Comparison]] = {}
    pool = fidelity.budget is not None
    for c in fidelity.comparisons if fidelity.compared else ():
        if _is_finite(c, policy) and not c.undefined:
            spoilt = {*c.spoilt}
            finite = c.at(lambda p, spoilt=spoilt: p not in spoilt) if spoilt else c  # type: ignore[misc]
            groups.setdefault(policy.of_output(c.output), []).append(finite)
    return {
        limits: Group(tuple(group), pool, implied=own or not pool)
        for limits, group in groups.items()
    }


def _with_limits(fidelity: Fidelity, groups: Groups) -> tuple[Figure, ...]:
    """Figures beside their limits; of outputs with limits of their own one figure for each."""
    made = {figure.name: figure for figure in figures(fidelity)}
    if any(group.pool for group in groups.values()) and (every := made.pop("cosine.min", None)):
        made["cosine.position.min"] = replace(
            every, name="cosine.position.min", label="lowest cosine", shown=False
        )
    worst = f"worst of {counted(probes([c for c in fidelity.comparisons if c.live]), 'probe')}"
    for limits, group in groups.items():
        outputs = ", ".join(dict.fromkeys(c.output for c in group.comparisons))
        for metric in METRICS:
            limit, parts = group.limit(metric, limits), group.parts(metric)
            measured = [c for c in parts if metric.of(c)[0]]
            if limit is None or not measured:
                continue
            part = min(measured, key=metric.rank)
            value = metric.worst(part)[0]
            name = _name(metric, groups, outputs)
            label = metric.label if name == metric.figure else f"{metric.label} of {outputs}"
            known = made.get(name) or Figure(name, value, label=label, shown=True)
            # Where positions were left out, the figure of all of them has no limit to keep.
            if known.value == value or (math.isnan(value) and value is not known.value):
                note = part.probe if metric is MEAN_COSINE else worst
                made[name] = replace(known, limit=limit, good=metric.good, note=note)
    return tuple(sorted(made.values(), key=lambda f: not (f.shown and f.name.startswith("cosine"))))


def _name(metric: Metric, groups: Groups, outputs: str) -> str:
    return metric.figure if len(groups) == 1 else f"{metric.figure}[{outputs}]"


def _findings(fidelity: Fidelity, policy: FidelityPolicy, groups: Groups) -> Iterator[Finding]:
    if fidelity.interface:
        yield Finding(
            "failed",
            f"The interface is not the declared one: {'; '.join(fidelity.interface)}",
            remedy="convert it with the names, types, ranges and settings of its family, builder "
            "or reference",
        )
    outputs = list(dict.fromkeys(c.output for c in fidelity.comparisons))
    for limits, group in groups.items():
        for metric in METRICS:
            limit = group.limit(metric, limits)
            if limit is not None:
                names = ", ".join(dict.fromkeys(c.output for c in group.comparisons))
                figure = _name(metric, groups, names)
                yield from _broken(metric, limit, group, figure, several=len(outputs) > 1)
    for name in policy.outputs.keys() - {*outputs}:
        yield Finding(
            "failed",
            f"policy.fidelity.outputs names {name!r}, and the outputs are {', '.join(outputs)}",
            remedy="correct the name",
        )
    for c in fidelity.comparisons:
        yield from _single(c, fidelity, policy)
    for limits, group in groups.items():
        yield from _rescaled(group, limits)
    if fidelity.compared:
        yield from _too_little(fidelity, policy)


def _single(c: Comparison, fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Finding]:
    where = Where(probe=c.probe, output=c.output)
    if c.undefined:
        yield Finding(
            "unproven",
            f"{c.probe}: {_share(c.undefined)} of the reference's own {c.output} is NaN or "
            "infinite, so the inputs are none that it takes, and nothing was compared",
            where,
            remedy="say what the inputs hold, [models.NAME.shard.ID.inputs.INPUT] in shards.toml",
            kind="are none that the reference takes: it gives NaN or infinity",
        )
        return
    if not _is_finite(c, policy):
        yield Finding(
            "failed",
            f"{c.probe}: {_share(1 - c.finite)} of output {c.output} is NaN or infinite (largest "
            f"input {c.input_max:,.1f}; fp16 squares overflow above 255.9)",
            where,
            kind="give NaN or infinite values",
        )
    if c.one_zero and fidelity.compared:
        yield Finding(
            "failed",
            f"{c.probe}: output {c.output} is zero on one side only at position "
            f"{some(c.one_zero, _NAMED)}{_routed(c)}",
            where,
            kind="are zero on one side only",
        )
    if c.one_adds:
        yield Finding(
            "failed",
            f"{c.probe}: output {c.output} adds to the residual path on one side only at "
            f"position {some(c.one_adds, _NAMED)}, as a shard does that returns its input",
            where,
            kind="add to the residual path on one side only",
        )


def _rescaled(group: Group, limits: OutputPolicy) -> Iterator[Finding]:
    """What adds to a residual path too much or too little, which no cosine shows."""
    if (limit := group.limit(MIN_CONTRIBUTION, limits)) is None or limits.min_contribution:
        return
    most = greatest_l2(limit)
    for c in group.comparisons:
        part = c.rest
        if part.contributions and c.residual is not None and c.residual < _BURIED:
            # |b| over the norm of what b adds: the path is at right angles to it, or taken to be.
            error = float(np.median(part.relative)) * math.hypot(1, c.residual)
            if error > most:
                yield Finding(
                    "failed",
                    f"{c.probe}: what output {c.output} adds to its residual path is off by "
                    f"{error:.2g} of itself, at most {most:.2g} follows from min-cosine = "
                    f"{limits.min_cosine:g}; the path is {c.residual:.3g} times as large",
                    Where(probe=c.probe, output=c.output),
                    kind="add too much or too little to the residual path",
                )


def _too_little(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Finding]:
    judged = _groups(fidelity, policy)
    infinite = [c for c in fidelity.comparisons if not _is_finite(c, policy)]
    parts = [*infinite, *(c for group in judged.values() for c in group.comparisons)]
    live, total = probes([c for c in parts if c.rest.live]), probes(fidelity.comparisons)
    undefined = probes([c for c in fidelity.comparisons if c.undefined])
    if live + undefined < policy.min_live_probes:
        rest = ["gave zeros", "are position 0 alone"]
        if any(c.undecided for c in fidelity.comparisons):
            rest.append("have rows alone at which rounding to fp16 decides the expert")
        yield Finding(
            "failed",
            f"{live} of {total} probes are live (the rest {', or '.join(rest)}), "
            f"min-live-probes is {policy.min_live_probes}: too little was compared",
        )


def _broken(
    metric: Metric, limit: float, group: Group, figure: str, *, several: bool
) -> Iterator[Finding]:
    """A finding where live comparisons do not keep a threshold, or none can be held to it."""
    parts = group.parts(metric)
    measured = [c for c in parts if metric.of(c)[0]]
    if parts and not measured:
        yield _no_values(metric, parts)
    bound = Bound(limit, metric.good)
    if not (bad := [c for c in measured if not bound.passes(metric.worst(c)[0])]):
        return
    c = min(bad, key=metric.rank)
    value, position = metric.worst(c)
    output = f", output {c.output}" if several else ""
    side = "below" if metric.least else "above"
    hidden = ""
    if metric is MIN_CONTRIBUTION and c.residual is not None:
        hidden = f", residual {c.residual:.3g} times the contribution"
    asked = f"{metric.key} = {limit:g}"
    if metric is FIRST_COSINE:
        asked = f"{limit:g}, which min-cosine allows there"
    head = (
        f"{probes(bad)} of {probes(measured)} live probes are {side} {asked}: {metric.label} "
        f"{value:.6g} in {c.probe}{output}, position {position}"
    )
    if metric is MEAN_COSINE:
        head = f"the mean cosine of {c.probe}{output} is {value:.6g}, {side} {asked}"
    # A fact of the measurement, and no remedy: a looser threshold mends nothing.
    passing = metric.passing(value)
    yield Finding(
        "failed",
        f"{head} (largest input {c.input_max:,.1f}, absolute error up to {c.error_max:.4g}{hidden})"
        f"{passing and f'; {passing}'}",
        Where(probe=c.probe, output=c.output, position=position),
        figure=figure,
    )


def _no_values(metric: Metric, parts: Sequence[Comparison]) -> Finding:
    """A threshold that nothing can be held to; what is known of contributions says why."""
    output = f"output {', '.join(dict.fromkeys(c.output for c in parts))}"
    why, remedy = f"no {metric.label} of {output} could be computed", ""
    if metric is MIN_CONTRIBUTION and all(c.kind == "extreme" for c in parts):
        why = "contributions are not compared on extreme inputs"
        remedy = "add another kind to probes.kinds"
    elif metric is MIN_CONTRIBUTION and any(c.idle for c in parts):
        why = f"{output} is the residual path alone in every probe, so no contribution was compared"
    elif metric is MIN_CONTRIBUTION:
        why, remedy = f"no residual path of {output} is known", "set it for shards that have one"
    return Finding("failed", f"{metric.key} is set, but {why}", remedy=remedy)


def _is_finite(c: Comparison, policy: FidelityPolicy) -> bool:
    return 1 - c.finite <= (policy.of_output(c.output).max_non_finite or 0.0)


def _share(value: float) -> str:
    """A share as per cent, never rounded down to nothing."""
    return f"{value:.2%}" if value >= 1e-4 else "less than 0.01%"


def _routed(c: Comparison) -> str:
    if not c.experts:
        return ""
    active = sorted({expert for experts in c.experts[:_NAMED] for expert in experts})
    if not active:
        return ", where no expert of this shard is active in the reference"
    word, verb = ("experts", "are") if len(active) > 1 else ("expert", "is")
    return f", where {word} {', '.join(map(str, active))} {verb} active in the reference"


Groups = Mapping[OutputPolicy, Group]
"""Comparisons that are judged, by the thresholds of their outputs."""

_BINS = 8
"""Bins of the histogram of the worst probe's cosines, and the positions it takes at least."""
_ERROR_BINS = 12
"""Bins of the histogram of each probe's errors."""


def tables(fidelity: Fidelity, groups: Groups) -> Iterator[Table]:
    """All comparisons, how the errors of each are spread, and what probes exercise."""
    ranked = sorted(fidelity.comparisons, key=_rank)
    yield _probes(ranked, groups)
    worst = next((c for c in ranked if len(c.cosines) >= _BINS), None)
    if worst is not None and np.isfinite(worst.cosines).all():
        counts, edges = np.histogram(worst.cosines, _BINS)
        yield Table(
            f"cosines of {worst.probe} over its {len(worst.cosines)} positions",
            (Column("from"), Column("to"), Column("positions", bar=True)),
            tuple(
                (float(low), float(high), int(count))
                for low, high, count in zip(edges, edges[1:], counts, strict=False)
            ),
            "cosines",
        )
    if fidelity.coverage:
        rows = [(each.what, each.how) for each in fidelity.coverage]
        columns = [Column("what"), Column("how")]
        yield Table("what the probes exercise", tuple(columns), tuple(rows), "coverage")
    if fidelity.compared:
        yield _errors(ranked)


def _probes(ranked: Sequence[Comparison], groups: Groups) -> Table:
    """All comparisons beside their limits; of seeded probes' lowest cosines there is none."""
    limits, pools = {}, False
    if len(groups) == 1:
        ((policy, group),) = groups.items()
        limits = {metric: group.limit(metric, policy) for metric in METRICS}
        pools = bool(group.parts(MEAN_COSINE))
    positions = (m for m in METRICS if m not in (FIRST_COSINE, MEAN_COSINE))
    metrics = [m for m in positions if any(m.of(c)[0] for c in ranked)]
    metrics.sort(key=lambda m: limits.get(m) is None)
    if pools:
        limits[MIN_COSINE] = None
    several = len({c.output for c in ranked}) > 1
    columns = [Column("probe"), *([Column("output")] if several else [])]
    for metric in metrics:
        title = f"lowest {metric.label}" if pools and metric is MIN_COSINE else metric.label
        columns.append(Column(title, "", limits.get(metric), metric.good))
        columns += [Column("at")] if metric is MIN_COSINE else []
    columns += [Column("zeros"), Column("max |x|")]
    rows = []
    for c in ranked:
        row: list[Cell] = [c.probe, *([c.output] if several else [])]
        for metric in metrics:
            value, at = metric.worst(c) if metric.of(c)[0] else (None, None)
            row += (value, at) if metric is MIN_COSINE else (value,)
        rows.append((*row, len(c.both_zero) or None, c.input_max or None))
    return Table("probes, the worst first", tuple(columns), tuple(rows), "probes")


def _errors(ranked: Sequence[Comparison]) -> Table:
    """Relative L2 over positions, but for position 0 of captured probes: statistics, histogram.

    Positions whose error is NaN or infinite are counted, and in no statistic.
    """
    heads = ("mean", "median", "p90", "p99", "max", "from", "to")
    return Table(
        "relative L2 over positions",
        (
            *map(Column, ("probe", "output", "positions", "undefined", *heads)),
            *(Column(f"bin {i}", bar=True) for i in range(1, _ERROR_BINS + 1)),
        ),
        tuple(_spread(c.rest) for c in ranked if c.live),
        "errors",
        listed=False,
    )


def _spread(c: Comparison) -> tuple[Cell, ...]:
    values = np.asarray(c.relative)
    errors = values[np.isfinite(values)]
    row = (c.probe, c.output, len(values), len(values) - len(errors))
    if not len(errors):
        return (*row, *(None,) * (7 + _ERROR_BINS))
    low, high = float(errors.min()), float(errors.max())
    # In units of the range: no sum overflows, and no range is too narrow for bins.
    parts = (errors - low) / (high - low or 1.0)
    counts, _ = np.histogram(parts, _ERROR_BINS, (0.0, 1.0))
    mean, quantiles = low + (high - low) * parts.mean(), np.quantile(errors, (0.5, 0.9, 0.99))
    statistics = (mean, *quantiles, high, low, high)
    return (*row, *map(rounded, statistics), *counts.tolist())


def _rank(c: Comparison) -> float:
    """Lowest cosine first, an undefined one before any number; what is zero comes last."""
    if not c.live:
        return 2.0
    return -2.0 if math.isnan(c.worst) else c.worst
