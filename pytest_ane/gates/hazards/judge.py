"""Verdict of the hazards gate: limits of the ANE's arithmetic held against what probes met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    loosened,
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


_SCALE = (
    "multiply the input or the weights by a power of two such as 2^-4, and the result by its "
    "inverse"
)
_FUSED = ", if the compiler does not fuse it back, which is unknown"


class Known(NamedTuple):
    """What is known of a hazard and its rule.

    `kind` is what operations do that met it, and what those do that come near; `remedies` are by
    the role in attention or the kind of an operation, empty for others.
    """

    title: str
    grade: str
    source: str
    kind: tuple[str, str]
    remedies: Mapping[str, str]


KNOWN: Mapping[Hazard, Known] = {
    "sum": Known(
        "largest |sum|", "recorded", _STUDY,
        ("overflow the accumulator", "come near the accumulator's limit"), {"": _SCALE},
    ),
    "order": Known(
        "outputs that may overflow", "recorded", _STUDY,
        ("may overflow the accumulator, by the order of summation", ""), {"": _SCALE},
    ),
    "infinity": Known(
        "infinite operands", "recorded", _STUDY,
        ("have infinite operands, which the ANE takes for numbers", ""),
        {"": "keep its operands finite: use -1e4 in a mask, and results within fp16's 65,504"},
    ),
    "softplus": Known(
        "exp(x) + 1", "inferred", "apple/coremltools issue 2687",
        ("are beyond softplus's cliff", "come near softplus's cliff"),
        {"": "write it as relu(x) + log(1 + exp(-|x|))"},
    ),
    "logsumexp": Known(
        "sum of exp(x)", "inferred", "apple/coremltools issue 2690",
        ("are beyond logsumexp's cliff", "come near logsumexp's cliff"),
        {"": "subtract the maximum of x before exp, and add it to the logarithm"},
    ),
    "dropped": Known(
        "share of |w x| dropped", "recorded", _STUDY,
        ("lose products that are too small", "lose products that are too small"),
        {
            "": "multiply the smaller operand by a power of two such as 2^6, and the result by its "
            "inverse",
            "scores": "if a scale such as 1/sqrt(d) is folded into these weights, take it out and "
            "multiply the scores by it",
            "values": "normalize after P @ V: multiply exp(scores - maximum) with V, and divide "
            "the result by the sum of the exponentials",
        },
    ),
    "table": Known(
        "error of the table", "fitted", _STUDY,
        ("", "are by a table with an error above warn-table-error"),
        {
            "": f"a composition of other functions may be nearer{_FUSED}",
            "silu": f"write it as x * (0.5 * tanh(x / 2) + 0.5){_FUSED}",
            "sigmoid": f"write it as 0.5 * tanh(x / 2) + 0.5{_FUSED}",
            "gelu": "write it as 0.5 * x * (1 + tanh(0.79788456 * (x + 0.044715 * x^3)))"
            f"{_FUSED}",
        },
    ),
    "late-scale": Known(
        "largest |sum| of codes", "inferred", "cadamcat/llms-on-apple-neural-engine",
        ("", "would overflow, or nearly, if scales come after the sum (inferred)"),
        {"": "store the weight as a palette or in fp16, or multiply its input by a power of two "
         "such as 2^-4, and the result by its inverse"},
    ),
}  # fmt: skip
"""In the order of their weight."""
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
        unknown = ", ".join(rules.unknown)
        reason = f"No operation has a known rule of the ANE's arithmetic: {unknown}"
        remedy = "convert the program to fp16, or leave arithmetic 'ane' out"
        return nothing("hazards", subject, reason, remedy, **made)
    still = () if rules.operations else (Finding("note", _MOVES_ONLY),)
    found = (*findings(measurement, policy), *unknown_rules(rules), *still)
    tables = (_table(measurement, policy),) if measurement.peaks else ()
    numbers = (*figures(measurement, policy), *loosened(policy))
    return Verdict("hazards", subject, numbers, found, tables, **made)


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
    known, met = KNOWN[peak.hazard], severity == "failed"
    kind = known.kind[0 if met or not known.kind[1] else 1]
    if peak.hazard == "dropped":
        kind += {"scores": " for attention", "values": " in P @ V"}.get(peak.role, "")
    elif peak.hazard == "table":
        kind = kind.replace("are by", f"are {peak.kind} by")
    what, source = _sentence(peak, met, policy), f"({known.grade}: {known.source})"
    return Finding(
        severity, f"{SIMULATED}: {peak.op} ({peak.kind}) on {peak.probe}: {what} {source}",
        Where(op=peak.op, probe=peak.probe),
        known.remedies.get(peak.role or peak.kind, known.remedies[""]), kind,
        _figure(peak, policy).name if met else "",
    )  # fmt: skip


def _sentence(peak: Peak, met: bool, policy: HazardsPolicy) -> str:
    value, most = peak.value, limit_of(peak.hazard, policy) or 0.0
    near = "beyond" if met or value >= most else f"within a factor of {_NEAR:g} of"
    match peak.hazard:
        case "sum" if met:
            return f"{counted(peak.count, 'output')} overflowed, as the accumulator met {most:,.0f}"
        case "order":
            orders = f"some orders of summation meet {ACCUMULATOR:,.0f}, and the ANE's is unknown"
            return f"{counted(value, 'output')} may overflow: {orders}"
        case "infinity":
            after = "which the ANE takes for numbers from 65,536 on"
            return f"{counted(value, 'operand')} are infinite or NaN, {after}"
        case "dropped":
            share = f"{peak.count:.1%} of the products are dropped"
            above = f"above {most * (1 if met else _NEAR_DROPPED):.2%}"
            return f"{share}, {value:.2%} of the sum of |w x|, {above}"
        case "table":
            above = f"above {policy.warn_table_error:.2%}"
            return f"the table's error is {value:.2%} of its results, {above}"
        case hazard:
            what, after = _REACHES[hazard]
            return f"{what} {value:,.0f}, {near} {most:,.0f}, from which {after}"


_REACHES: Mapping[Hazard, tuple[str, str]] = {
    "sum": ("the largest |sum| is", "the accumulator overflows"),
    "softplus": ("exp(x) + 1 reaches", "softplus is 0 (x = 10.398)"),
    "logsumexp": ("the sum of exp(x) reaches", "its logarithm is 0"),
    "late-scale": (
        "the largest |sum| of integer codes is", "it overflows if the scale comes after the sum",
    ),
}  # fmt: skip


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
    rows, shown = list[tuple[Cell, ...]](), Counter[Hazard]()
    for peak in _ranked(measurement.peaks):
        shown[peak.hazard] += 1
        if shown[peak.hazard] <= _SHOWN and peak.value:
            known, limit = KNOWN[peak.hazard], limit_of(peak.hazard, policy)
            where = (peak.op, peak.kind, known.title, peak.probe)
            rows.append((*where, peak.value, limit, known.grade))
    return Table("hazards", tuple(map(Column, heads)), tuple(rows), "hazards")
