"""Verdict of the fidelity gate: thresholds held against comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_ane.gates.arithmetics import in_arithmetic
from pytest_ane.gates.fidelity._records import (
    CONTRIBUTIONS,
    COSINES,
    FIRST_COSINE,
    MAX_RELATIVE_L2,
    MEAN_COSINE,
    MEAN_L2,
    MEANS,
    METRICS,
    MIN_CONTRIBUTION,
    MIN_COSINE,
    Comparison,
    Fidelity,
    Group,
    Metric,
    greatest_l2,
    threshold,
)
from pytest_ane.gates.fidelity._split import (
    amount,
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
    Severity,
    Table,
    Verdict,
    Where,
    bounds,
    counted,
    limited,
    loosened,
    nothing,
    rounded,
    some,
)
from pytest_ane.manifest.policy import FidelityPolicy, OutputPolicy

_BURIED = 256
"""How many times larger a residual path may be; beyond, what is left is fp16's rounding."""
_NAMED = 5
"""Positions that are named; the rest is counted."""
_ZERO = "are zero on one side only"
_FINITE = (
    "make what enters smaller and what leaves larger again, or compute it in float32; give a mask "
    "a finite value, such as -1e4"
)
_UNMOVED = (
    "look for an input that conversion has frozen, weights that are missing, and values that "
    "underflow; where the inputs drawn are none that it takes, say what they hold; where it is "
    "right, name a reference that has it"
)
_EDGES = {
    "overflows": ("fp16 overflows", "scale before what overflows, or keep that in float32"),
    "rounds": ("fp16 rounds too much", "keep in float32 what rounds, or scale the inputs"),
    "departs": ("it departs from its reference", "look for a clip, a table or a cast to integers"),
}
"""What becomes of inputs beyond the edge, and what to do."""
_ANOTHER = (
    "name golden tensors of the original framework, or give a builder's Conversion a reference; "
    "docs/how-to/own-model.md tells more"
)


def judge(
    fidelity: Fidelity, policy: FidelityPolicy, subject: str, *, own: bool = False
) -> Verdict:
    """Passed only if something was compared, and everything compared is close and finite.

    `own` says that the artifact is the user's own, so that what an error budget calls compression
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
        split = tuple(compression_finding(fidelity, subject))
    found = (*split, *findings)
    if fidelity.overflow and any(finding.severity == "failed" for finding in found):
        # What is zero because of it, and left out, needs no words of its own.
        told = (f for f in found if not f.kind.startswith((_ZERO, "are live")))
        found = (Finding("failed", fidelity.overflow, remedy=_FINITE), *told)
    verdict = Verdict(
        "fidelity",
        subject,
        (
            *limited(_with_limits(fidelity, groups), _range(policy)),
            *split_figures(fidelity, policy),
            *_loosened(policy, implied=own or fidelity.budget is None),
        ),
        (*found, *_without(fidelity, policy)),
        tuple(tables(fidelity, groups)),
        fidelity.provenance,
    )
    return in_arithmetic(verdict, fidelity.arithmetic, fidelity.rules, cost_figures(fidelity))


def _loosened(policy: FidelityPolicy, *, implied: bool) -> Iterator[Figure]:
    default = FidelityPolicy()
    known = {key: getattr(default, key) for key in OutputPolicy.model_fields}
    for metric in (MIN_CONTRIBUTION, MAX_RELATIVE_L2):
        known[metric.key.replace("-", "_")] = threshold(metric, default, implied=implied)
    yield from loosened(policy, known)
    for name, output in policy.outputs.items():
        yield from loosened(output, known, name)


def limits(policy: FidelityPolicy, *, own: bool) -> Limits:
    """What a policy asks of figures; arguments as of `judge`.

    Where outputs have thresholds of their own, those of metrics depend on which outputs there are.
    """
    known = () if policy.outputs else METRICS
    asked = ((metric, threshold(metric, policy.of_output(""), implied=own)) for metric in known)
    made = {m.figure: Bound(limit, m.good) for m, limit in asked if limit is not None}
    return {**made, **split_limits(policy), **_range(policy)}


def _range(policy: FidelityPolicy) -> Limits:
    return bounds("above", edge__holds=policy.input_range)


def _without(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Finding]:
    """What is left out by probes, of the error budget, and of what is known of the reference."""
    for covered in fidelity.coverage or () if fidelity.compared else ():
        if not covered.exercised:
            reason = f"The {covered.what} is not exercised: {covered.how}"
            yield Finding("unproven", reason, remedy=covered.remedy, kind="are not exercised")
    if fidelity.adapted:
        declared = f"The reference declares another interface: {'; '.join(fidelity.adapted)}"
        yield Finding("note", declared)
    if fidelity.compared and fidelity.unsplit:
        yield Finding("note", fidelity.unsplit)
    count = counted(probes(fidelity.comparisons), "probe")
    for one in fidelity.unmoved or ():
        what = "zero" if one.how == "zero" else "the same"
        severity: Severity = "warned" if one.whole else "failed"
        reason = f"Output {one.output} is {what} in {count}, whatever the input"
        remedy, kind = _UNMOVED, f"are {what} in all probes"
        if fidelity.compared:  # Both may be wrong, for one conversion made them.
            if one.constant or one.whole or one.how == "alone":
                continue
            severity, remedy = "unproven", _ANOTHER
            reason = f"{reason}, of the artifact and of its reference"
        elif one.constant:
            severity, remedy = "warned", "name a reference that has it"
            kind = "are the same whatever the input: no operation leads to them"
            reason = f"Output {one.output} is the same whatever the input: no operation leads to it"
        elif one.how == "alone":
            severity, kind = "unproven", "may be the same whatever the input"
            remedy = "set probes.count to 2 or more, or name more files"
            why = "no two probes of one shape have different inputs"
            reason = f"Whether output {one.output} depends on the input is not known: {why}"
        yield Finding(severity, reason, Where(output=one.output), remedy, kind)
    if policy.require_independent and fidelity.same_module is not False:
        unknown = "Who wrote the reference is not recorded"
        what = "The reference is the same module" if fidelity.same_module else unknown
        what = what if fidelity.compared else "There is no reference"
        reason = f"{what}, and require-independent asks for one by another author"
        yield Finding("unproven", reason, remedy=_ANOTHER)


def figures(fidelity: Fidelity) -> tuple[Figure, ...]:
    """Numbers of all probes; those of position 0 of captured probes are called `first`."""
    all_, live = fidelity.comparisons, [c for c in fidelity.comparisons if c.live]
    largest = float(np.max([c.input_max for c in all_], initial=0.0))
    finite = Figure("finite", min((c.finite for c in all_), default=1.0), "%", "finite")
    alone = replace(finite, note="no reference", shown=True)
    same = Figure("reference", "same module", label="reference:", shown=True)
    return (
        *((same,) if fidelity.same_module else ()),
        *((*_compared(fidelity), finite) if fidelity.compared else (alone,)),
        *_edge(fidelity),
        Figure("probes", probes(all_), "probes", shown=True),
        Figure("probes.live", probes(live), "live probes",
               shown=fidelity.compared and probes(live) < probes(all_)),
        Figure("input.max", largest, label="max |x|", shown=largest != 0),
    )  # fmt: skip


def _edge(fidelity: Fidelity) -> Iterator[Figure]:
    if (edge := fidelity.edge) is not None:
        yield Figure("edge.holds", edge.holds, label="right up to |x|")
        if edge.how and edge.holds:
            yield Figure("edge", f"{edge.holds:,g} x", label=f"{edge.how} from", shown=True)


def _beyond(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Finding]:
    """Inputs larger than those for which the shard is right, or than any probe is."""
    most, edge = policy.input_range, fidelity.edge
    if most is None:
        return
    if edge is not None and edge.how and edge.holds < most:
        how, remedy = _EDGES[edge.how]
        op = f" ({edge.op})" if edge.op else ""
        reason = f"Inputs reach {most:,g}, and from {edge.holds:,g} on {how}{op}"
        yield Finding("failed", reason, remedy=remedy, figure="edge.holds")
        return
    largest = max([c.input_max for c in fidelity.comparisons] + [edge.holds if edge else 0.0])
    if largest < most:
        reason = f"Inputs reach {most:,g}, and no probe is larger than {largest:,.3g}"
        remedy = "give inputs of that size, in golden tensors or by what [...inputs.NAME] says"
        yield Finding("unproven", reason, remedy=remedy)


def probes(comparisons: Sequence[Comparison]) -> int:
    return len({c.probe for c in comparisons})


def _compared(fidelity: Fidelity) -> Iterator[Figure]:
    every = fidelity.comparisons
    rest = [c.rest for c in every]
    kinds = dict.fromkeys(c.kind for c in every)
    for name, of in (("cosine", COSINES), ("contribution", CONTRIBUTIONS)):
        for key, parts, label in (
            ("min", rest, name),
            ("mean", rest, f"mean {name}"),
            *((f"{k}.min", [c for c in rest if c.kind == k], f"{k} {name}") for k in kinds),
            ("first.min", [c.first for c in every], f"{name} at position 0"),
        ):
            if values := [value for c in parts for value in of(c)[0]]:
                value = np.mean(values) if key == "mean" else np.min(values)
                yield Figure(f"{name}.{key}", float(value), label=label, shown=key == "min")
    if hidden := [c.residual for c in rest if c.residual is not None]:
        yield Figure("contribution.residual", float(np.max(hidden)), "x", "residual")
    if undecided := sum(len(c.undecided) for c in every):
        yield Figure("positions.undecided", undecided, "positions", "undecided between experts",
                     shown=True)  # fmt: skip
    if errors := [error for c in rest for error in c.relative]:
        yield Figure(MAX_RELATIVE_L2.figure, float(np.max(errors)), label=MAX_RELATIVE_L2.label)
    if errors := [c.error_max for c in every if c.live]:
        yield Figure("error.max", float(np.max(errors)), label="absolute error")


def _groups(fidelity: Fidelity, policy: FidelityPolicy, *, own: bool = False) -> Groups:
    """Without positions that are not finite where the policy allows those."""
    groups: dict[OutputPolicy, list[Comparison]] = {}
    # Of an own package only a program that was held to the uncompressed one leaves nothing unseen.
    budget = fidelity.budget
    pool = budget is not None and (not own or budget.program is not None)
    for c in fidelity.comparisons if fidelity.compared else ():
        if _is_finite(c, policy) and not c.undefined:
            finite = c.at(lambda p, spoilt={*c.spoilt}: p not in spoilt) if c.spoilt else c  # type: ignore[misc]
            groups.setdefault(policy.of_output(c.output), []).append(finite)
    return {limits: Group(tuple(g), pool, own or not pool) for limits, g in groups.items()}


class _Held(NamedTuple):
    """A threshold, and what is held against it; `output` where outputs have their own."""

    metric: Metric
    limit: float
    parts: list[Comparison]
    output: str

    @property
    def figure(self) -> str:
        return f"{self.metric.figure}[{self.output}]" if self.output else self.metric.figure


def _held(groups: Groups) -> Iterator[_Held]:
    for limits, group in groups.items():
        output = ", ".join(dict.fromkeys(c.output for c in group.comparisons))
        for metric in METRICS:
            if (limit := group.limit(metric, limits)) is not None:
                name = output if len(groups) > 1 else ""
                yield _Held(metric, limit, group.parts(metric), name)


def _with_limits(fidelity: Fidelity, groups: Groups) -> tuple[Figure, ...]:
    """Figures beside their limits; of outputs with limits of their own one figure for each."""
    made = {figure.name: figure for figure in figures(fidelity)}
    if any(group.pool for group in groups.values()) and (every := made.pop("cosine.min", None)):
        name = "cosine.position.min"
        made[name] = replace(every, name=name, label="lowest cosine", shown=False)
    worst = f"worst of {counted(probes([c for c in fidelity.comparisons if c.live]), 'probe')}"
    for held in _held(groups):
        metric = held.metric
        if not (measured := [c for c in held.parts if metric.of(c)[0]]):
            continue
        part = min(measured, key=metric.rank)
        value = metric.worst(part)[0]
        label = f"{metric.label} of {held.output}" if held.output else metric.label
        known = made.get(held.figure) or Figure(held.figure, value, label=label, shown=True)
        # Where positions were left out, the figure of all of them has no limit to keep.
        if known.value == value or (math.isnan(value) and value is not known.value):
            note = part.probe if metric in MEANS else worst
            made[held.figure] = replace(known, limit=held.limit, good=metric.good, note=note)
    first = ("cosine", "reference")
    return tuple(sorted(made.values(), key=lambda f: not (f.shown and f.name.startswith(first))))


def _findings(fidelity: Fidelity, policy: FidelityPolicy, groups: Groups) -> Iterator[Finding]:
    if fidelity.interface:
        whose = "the declared one" if fidelity.adapted is None else "that of the reference"
        reason = f"The interface is not {whose}: {'; '.join(fidelity.interface)}"
        remedy = "convert it with the names, types, ranges and settings that are declared"
        yield Finding("failed", reason, remedy=remedy)
    outputs = list(dict.fromkeys(c.output for c in fidelity.comparisons))
    for held in _held(groups):
        yield from _broken(held, several=len(outputs) > 1)
    for name in policy.outputs.keys() - {*outputs}:
        reason = f"policy.fidelity.outputs names {name!r}, and the outputs are {', '.join(outputs)}"
        yield Finding("failed", reason, remedy="correct the name")
    for c in fidelity.comparisons:
        yield from _single(c, fidelity, policy)
    for limits, group in groups.items():
        yield from _rescaled(group, limits)
    yield from _beyond(fidelity, policy)
    every, least = fidelity.comparisons, policy.min_live_probes
    parts = [c for c in every if not _is_finite(c, policy)]
    parts += [c for group in groups.values() for c in group.comparisons]
    live = probes([c for c in parts if c.rest.live])
    if fidelity.compared and live + probes([c for c in every if c.undefined]) < least:
        rest = "the rest gave zeros, are position 0 alone, or rows that rounding decides"
        reason = f"{live} of {probes(every)} probes are live ({rest}), min-live-probes is {least}"
        yield Finding("failed", f"{reason}: too little was compared", kind="are live")


def _single(c: Comparison, fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[Finding]:
    where = Where(probe=c.probe, output=c.output)
    if c.undefined:
        own = f"{_share(c.undefined)} of the reference's own {c.output} is NaN or infinite"
        reason = f"{c.probe}: {own}, so the inputs are none that it takes, and nothing was compared"
        remedy = "say what the inputs hold, [models.NAME.shard.ID.inputs.INPUT] in shards.toml"
        kind = "are none that the reference takes: it gives NaN or infinity"
        yield Finding("unproven", reason, where, remedy, kind)
        return
    if not _is_finite(c, policy):
        largest = f"(largest input {c.input_max:,.1f}; fp16 squares overflow above 255.9)"
        share = f"{_share(1 - c.finite)} of output {c.output} is NaN or infinite"
        kind = "give NaN or infinite values"
        yield Finding("failed", f"{c.probe}: {share} {largest}", where, kind=kind)
    experts = ""
    if c.experts:
        active = sorted({e for experts in c.experts[:_NAMED] for e in experts})
        named = ", ".join(map(str, active)) or "none of this shard"
        experts = f"; experts active in the reference: {named}"
    idle, adds = ", as a shard does that returns its input", "to the residual path on one side only"
    for positions, what, rest, kind in (
        (c.one_zero if fidelity.compared else (), _ZERO.replace("are", "is"), experts, _ZERO),
        (c.one_adds, f"adds {adds}", idle, f"add {adds}"),
    ):
        if positions:
            at = f"at position {some(positions, _NAMED)}{rest}"
            reason = f"{c.probe}: output {c.output} {what} {at}"
            yield Finding("failed", reason, where, kind=kind)


def _rescaled(group: Group, limits: OutputPolicy) -> Iterator[Finding]:
    """What adds to a residual path too much or too little, which no cosine shows."""
    limit = None if limits.min_contribution else group.limit(MIN_CONTRIBUTION, limits)
    for c in group.comparisons if limit is not None else ():
        part, most = c.rest, greatest_l2(limit or 0.0)
        if part.contributions and c.residual is not None and c.residual < _BURIED:
            # |b| over the norm of what b adds: the path is at right angles to it, or taken to be.
            error = float(np.median(part.relative)) * math.hypot(1, c.residual)
            if error > most:
                yield Finding(
                    "failed",
                    f"{c.probe}: what output {c.output} adds to its residual path is off by "
                    f"{amount(error, 'itself')}, at most {most:.2g} follows from min-cosine = "
                    f"{limits.min_cosine:g}; the path is {c.residual:.3g} times as large",
                    Where(probe=c.probe, output=c.output),
                    kind="add too much or too little to the residual path",
                )


def _broken(held: _Held, *, several: bool) -> Iterator[Finding]:
    metric, limit, parts, _ = held
    measured = [c for c in parts if metric.of(c)[0]]
    if parts and not measured:
        outputs = ", ".join(dict.fromkeys(c.output for c in parts))
        reason = f"{metric.key} is set, but no {metric.label} of output {outputs} could be computed"
        if metric is MIN_CONTRIBUTION:
            reason += ": no residual path is known, nothing is added to it, or all is extreme"
        yield Finding("failed", reason)
    bound = Bound(limit, metric.good)
    if not (bad := [c for c in measured if not bound.passes(metric.worst(c)[0])]):
        return
    c = min(bad, key=metric.rank)
    value, position = metric.worst(c)
    output = f", output {c.output}" if several else ""
    side = "below" if metric.good == "above" else "above"
    facts = f"largest input {c.input_max:,.1f}, absolute error up to {c.error_max:.4g}"
    if metric is MIN_CONTRIBUTION and c.residual is not None:
        facts += f", residual {c.residual:.3g} times the contribution"
    asked = f"{metric.key} = {limit:g}"
    if metric is FIRST_COSINE:
        asked = f"{limit:g}, which min-cosine allows there"
    head = f"{probes(bad)} of {probes(measured)} live probes are {side} {asked}: {metric.label} "
    head += f"{value:.6g} in {c.probe}{output}, position {position}"
    if metric in MEANS:
        head = f"the {metric.label} of {c.probe}{output} is {value:.6g}, {side} {asked}"
    # A fact of the measurement, and no remedy: a looser threshold mends nothing.
    passing = f"; {known}" if (known := metric.passing(value)) else ""
    where = Where(probe=c.probe, output=c.output, position=position)
    yield Finding("failed", f"{head} ({facts}){passing}", where, figure=held.figure)


def _is_finite(c: Comparison, policy: FidelityPolicy) -> bool:
    return 1 - c.finite <= (policy.of_output(c.output).max_non_finite or 0.0)


def _share(value: float) -> str:
    return f"{value:.2%}" if value >= 1e-4 else "less than 0.01%"


Groups = Mapping[OutputPolicy, Group]
"""Comparisons that are judged, by the thresholds of their outputs."""

_ERROR_BINS = 12
"""Bins of the histogram of each probe's errors."""


def tables(fidelity: Fidelity, groups: Groups) -> Iterator[Table]:
    ranked = sorted(fidelity.comparisons, key=_rank)
    yield _probes(ranked, groups)
    if fidelity.coverage:
        rows = tuple((each.what, each.how) for each in fidelity.coverage)
        columns = (Column("what"), Column("how"))
        yield Table("what the probes exercise", columns, rows, "coverage")
    if fidelity.compared:
        # But for position 0 of captured probes.
        names = ("probe", "output", "positions", "undefined")
        heads = (*names, "mean", "median", "p90", "p99", "max", "from", "to")
        bins = (Column(f"bin {i}", bar=True) for i in range(1, _ERROR_BINS + 1))
        spread = tuple(_spread(c.rest) for c in ranked if c.live)
        title = "relative L2 over positions"
        yield Table(title, (*map(Column, heads), *bins), spread, "errors", listed=False)


def _probes(ranked: Sequence[Comparison], groups: Groups) -> Table:
    """All comparisons beside their limits; of what has a limit for its mean there is none."""
    limits, pools = {}, False
    if len(groups) == 1:
        ((policy, group),) = groups.items()
        limits = {metric: group.limit(metric, policy) for metric in METRICS}
        pools = bool(group.parts(MEAN_COSINE))
        for each, mean in ((MIN_COSINE, MEAN_COSINE), (MAX_RELATIVE_L2, MEAN_L2)):
            limits[each] = None if group.parts(mean) else limits[each]
    apart = (FIRST_COSINE, *MEANS)
    metrics = [m for m in METRICS if m not in apart and any(m.of(c)[0] for c in ranked)]
    metrics.sort(key=lambda m: limits.get(m) is None)
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
            worst = metric.worst(c) if metric.of(c)[0] else (None, None)
            row += worst if metric is MIN_COSINE else worst[:1]
        rows.append((*row, len(c.both_zero) or None, c.input_max or None))
    return Table("probes, the worst first", tuple(columns), tuple(rows), "probes")


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
    mean = low + (high - low) * parts.mean()
    statistics = (mean, *np.quantile(errors, (0.5, 0.9, 0.99)), high, low, high)
    return (*row, *map(rounded, statistics), *counts.tolist())


def _rank(c: Comparison) -> float:
    """Lowest cosine first, an undefined one before any number; what is zero comes last."""
    if not c.live:
        return 2.0
    return -2.0 if math.isnan(c.worst) else c.worst
