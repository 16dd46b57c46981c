"""Verdict of the hazards gate: limits of the ANE's arithmetic held against what probes met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.gates.arithmetics import rule_figures, unknown_rules
from pytest_ane.gates.hazards.measure import Hazard, Hazards, Peak
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
    counted,
    limited,
    nothing,
)
from pytest_ane.manifest.policy import HazardsPolicy
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.fp16 import MAX

ACCUMULATOR = 32768.0
"""Limit of a sum of products, bias and partial sums included."""
_MOVES_ONLY = "The program only moves numbers, so the ANE's arithmetic has no part in it"
_STUDY = "751K/Apple-Neural-Engine-Microarchitecture-Study-M6, final_report/en.md chapter 8"
_SHOWN = 12
"""Rows of the table for each hazard."""


@dataclass(frozen=True)
class Known:
    """What is known of a hazard.

    Attributes:
        title: in a few words.
        grade: how well its rule is known.
        source: where the rule comes from.
    """

    title: str
    grade: str
    source: str


KNOWN: Mapping[Hazard, Known] = {
    "sum": Known("largest |sum|", "recorded", _STUDY),
    "order": Known("outputs that may overflow", "recorded", _STUDY),
    "infinity": Known("infinite operands", "recorded", _STUDY),
    "softplus": Known("exp(x) + 1", "inferred", "apple/coremltools issue 2687"),
    "logsumexp": Known("sum of exp(x)", "inferred", "apple/coremltools issue 2690"),
    "dropped": Known("share of |w x| dropped", "recorded", _STUDY),
    "table": Known("error of the table", "fitted", _STUDY),
    "late-scale": Known(
        "largest |sum| of codes", "inferred", "cadamcat/llms-on-apple-neural-engine"
    ),
}
"""In the order of their weight."""

_SCALED = "a power of two such as 2^-4, and the result by its inverse"
_FUSED = ", if the compiler does not fuse it back, which is unknown"
REMEDIES: Mapping[tuple[Hazard, str], str] = {
    ("sum", ""): f"multiply the input or the weights by {_SCALED}",
    ("order", ""): f"multiply the input or the weights by {_SCALED}",
    ("infinity", ""): "keep its operands finite: use -1e4 in a mask, and results within fp16's "
    "65,504",
    ("softplus", ""): "write it as relu(x) + log(1 + exp(-|x|))",
    ("logsumexp", ""): "subtract the maximum of x before exp, and add it to the logarithm",
    ("dropped", ""): "multiply the smaller operand by a power of two such as 2^6, and the result "
    "by its inverse",
    ("dropped", "scores"): "if a scale such as 1/sqrt(d) is folded into these weights, take it out "
    "and multiply the scores by it",
    ("dropped", "values"): "normalize after P @ V: multiply exp(scores - maximum) with V, and "
    "divide the result by the sum of the exponentials",
    ("table", ""): f"a composition of other functions may be nearer{_FUSED}",
    ("table", "silu"): f"write it as x * (0.5 * tanh(x / 2) + 0.5){_FUSED}",
    ("table", "sigmoid"): f"write it as 0.5 * tanh(x / 2) + 0.5{_FUSED}",
    ("table", "gelu"): "write it as 0.5 * x * (1 + tanh(0.79788456 * (x + 0.044715 * x^3)))"
    f"{_FUSED}",
    ("late-scale", ""): "store the weight as a palette or in fp16, or multiply its input by "
    f"{_SCALED}",
}
"""Rewrites by hazard, and by the role in attention or the kind of an operation."""


_NEAR = 2.0
"""Within this factor of a limit, a value warns."""
_NEAR_DROPPED = 0.1
"""From this share of the limit on, dropped products warn."""


def judge(measurement: Hazards, policy: HazardsPolicy, subject: str) -> Verdict:
    """Failed by what was met, or is beyond the policy's limits; warned by what is near."""
    rules = measurement.rules
    known = sum(count for grade, count in rules.operations.items() if grade != "unknown")
    made: dict[str, Any] = {"provenance": measurement.provenance, "basis": SIMULATED}
    if not measurement.probes:
        reason = "No probe was run, so no hazard could be met"
        return nothing("hazards", subject, reason, "name probe kinds in shards.toml", **made)
    if not known and rules.operations:
        reason = (
            f"No operation has a known rule of the ANE's arithmetic: {', '.join(rules.unknown)}"
        )
        remedy = "convert the program to fp16, or leave arithmetic 'ane' out"
        return nothing("hazards", subject, reason, remedy, **made)
    still = () if rules.operations else (Finding("note", _MOVES_ONLY),)
    found = (*findings(measurement, policy), *unknown_rules(rules), *still)
    tables = (_table(measurement, policy),) if measurement.peaks else ()
    return Verdict("hazards", subject, figures(measurement, policy), found, tables, **made)


def findings(measurement: Hazards, policy: HazardsPolicy) -> list[Finding]:
    """What was met, then what is near, each in the order of hazards, the greatest first."""
    pairs = [(peak, _severity(peak, policy)) for peak in _ranked(measurement.peaks)]
    order: tuple[Severity, ...] = ("failed", "warned")
    return [_finding(p, of, policy) for severity in order for p, of in pairs if of == severity]


def figures(measurement: Hazards, policy: HazardsPolicy) -> tuple[Figure, ...]:
    """The greatest of each hazard, with its operation, and the rules by which probes ran."""
    worst: dict[Hazard, Peak] = {}
    for peak in _ranked(measurement.peaks):
        worst.setdefault(peak.hazard, peak)
    still = "" if measurement.rules.operations else "the program only moves numbers"
    return (
        *(_figure(peak, policy) for peak in worst.values()),
        Figure("probes", measurement.probes, "probes", note=still, shown=not worst),
        *rule_figures(measurement.rules),
    )


def _ranked(peaks: Sequence[Peak]) -> list[Peak]:
    order = {hazard: i for i, hazard in enumerate(KNOWN)}
    return sorted(peaks, key=lambda peak: (order[peak.hazard], -peak.value, -peak.count))


def limit_of(hazard: Hazard, policy: HazardsPolicy) -> float | None:
    """The value from which, or above which, a hazard fails; of `late-scale`, warns."""
    return {
        "sum": ACCUMULATOR, "softplus": ACCUMULATOR, "logsumexp": MAX, "late-scale": ACCUMULATOR,
        "dropped": policy.max_dropped_weight,
    }.get(hazard)  # fmt: skip


def limits(policy: HazardsPolicy) -> Limits:
    """What a policy asks of figures; `late-scale` only warns."""
    asked = {hazard: limit_of(hazard, policy) for hazard in KNOWN if hazard != "late-scale"}
    return {f"{h}.max": Bound(limit, "below") for h, limit in asked.items() if limit is not None}


def _severity(peak: Peak, policy: HazardsPolicy) -> Severity | None:
    hazard, value, limit = peak.hazard, peak.value, limit_of(peak.hazard, policy)
    if hazard in ("order", "infinity"):
        return "failed" if value else None
    if hazard in ("dropped", "table"):
        near = limit * _NEAR_DROPPED if limit else policy.warn_table_error
        if limit is not None and not value <= limit:
            return "failed"
        return None if value <= near else "warned"
    assert limit is not None
    met = math.isinf(value) if hazard == "sum" else not value < limit
    if met:
        return "warned" if hazard == "late-scale" else "failed"
    return "warned" if value * _NEAR >= limit else None


def _finding(peak: Peak, severity: Severity, policy: HazardsPolicy) -> Finding:
    known = KNOWN[peak.hazard]
    keys = ((peak.hazard, key) for key in (peak.role or peak.kind, ""))
    return Finding(
        severity,
        f"{SIMULATED}: {peak.op} ({peak.kind}) on {peak.probe}: "
        f"{_sentence(peak, severity, policy)} ({known.grade}: {known.source})",
        Where(op=peak.op, probe=peak.probe),
        next(REMEDIES[key] for key in keys if key in REMEDIES),
        _kind(peak, severity),
        _figure(peak, policy).name if severity == "failed" else "",
    )


def _sentence(peak: Peak, severity: Severity, policy: HazardsPolicy) -> str:
    value, met = peak.value, severity == "failed"
    near = f"within a factor of {_NEAR:g} of"
    match peak.hazard:
        case "sum" if met:
            outputs = counted(peak.count, "output")
            return f"{outputs} overflowed, as the accumulator met {ACCUMULATOR:,.0f}"
        case "sum":
            return (
                f"the largest |sum| is {value:,.0f}, {near} {ACCUMULATOR:,.0f}, from which the "
                "accumulator overflows"
            )
        case "order":
            return (
                f"{counted(value, 'output')} may overflow: some orders of summation meet "
                f"{ACCUMULATOR:,.0f}, and the ANE's is unknown"
            )
        case "infinity":
            return (
                f"{counted(value, 'operand')} {'is' if value == 1 else 'are'} infinite or NaN, "
                "which the ANE takes for numbers from 65,536 on"
            )
        case "softplus":
            return (
                f"exp(x) + 1 reaches {value:,.0f}, {'beyond' if met else near} "
                f"{ACCUMULATOR:,.0f}, from which softplus is 0 (x = 10.398)"
            )
        case "logsumexp":
            return (
                f"the sum of exp(x) reaches {value:,.0f}, {'beyond' if met else near} {MAX:,.0f}, "
                "from which its logarithm is 0"
            )
        case "dropped":
            share = policy.max_dropped_weight * (1 if met else _NEAR_DROPPED)
            return (
                f"{peak.count:.1%} of the products are dropped, {value:.2%} of the sum of |w x|, "
                f"above {share:.2%}"
            )
        case "table":
            near = f"{policy.warn_table_error:.2%}"
            return f"the table's error is {value:.2%} of its results, above {near}"
        case "late-scale":
            return (
                f"the largest |sum| of integer codes is {value:,.0f}, "
                f"{'beyond' if value >= ACCUMULATOR else near} {ACCUMULATOR:,.0f}, from which it "
                "overflows if the scale comes after the sum"
            )


def _kind(peak: Peak, severity: Severity) -> str:
    met = severity == "failed"
    role = {"scores": " for attention", "values": " in P @ V"}.get(peak.role, "")
    return {
        "sum": "overflow the accumulator" if met else "come near the accumulator's limit",
        "order": "may overflow the accumulator, by the order of summation",
        "infinity": "have infinite operands, which the ANE takes for numbers",
        "softplus": "are beyond softplus's cliff" if met else "come near softplus's cliff",
        "logsumexp": "are beyond logsumexp's cliff" if met else "come near logsumexp's cliff",
        "dropped": f"lose products that are too small{role}",
        "table": f"are {peak.kind} by a table with an error above warn-table-error",
        "late-scale": "would overflow, or nearly, if scales come after the sum (inferred)",
    }[peak.hazard]


def _figure(peak: Peak, policy: HazardsPolicy) -> Figure:
    label = KNOWN[peak.hazard].title
    note = f"{peak.op}, {peak.kind}"
    if peak.hazard in ("order", "infinity"):
        return Figure(peak.hazard, int(peak.value), "", label, note=note, shown=True)
    if peak.hazard == "late-scale":
        return Figure("late-scale.max", peak.value, "", f"{label} (inferred)", note=note)
    unit = "%" if peak.hazard in ("dropped", "table") else ""
    figure = Figure(f"{peak.hazard}.max", peak.value, unit, label, note=note, shown=True)
    return next(limited([figure], limits(policy)))


def _table(measurement: Hazards, policy: HazardsPolicy) -> Table:
    heads = ("operation", "kind", "hazard", "probe", "value", "limit", "rule")
    rows: list[tuple[Cell, ...]] = []
    shown: Counter[Hazard] = Counter()
    for peak in _ranked(measurement.peaks):
        shown[peak.hazard] += 1
        if shown[peak.hazard] <= _SHOWN and peak.value:
            known, limit = KNOWN[peak.hazard], limit_of(peak.hazard, policy)
            where = (peak.op, peak.kind, known.title, peak.probe)
            rows.append((*where, peak.value, limit, known.grade))
    return Table("hazards", tuple(map(Column, heads)), tuple(rows), "hazards")
