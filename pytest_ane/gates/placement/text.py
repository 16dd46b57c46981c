"""Every word a person reads of a forecast; pure functions of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from pytest_ane.gates.placement.forecast import BOUNDARY_CAST, Finding, Forecast
from pytest_ane.gates.placement.rules import Outcome, find

NOTE = (
    "This is a forecast from documented rules: which device runs an op, only a plan recorded on "
    "a Mac can say."
)
WORK_NOTE = (
    "Core ML may keep a small program on the CPU even where every op is eligible (R081): an fp16 "
    "matmul alone moved to the ANE between 384 and 512 square on M4, a 3x3 convolution between 128 "
    "and 256 channels of 32 x 32 on M5, and stacks of one or two layers stayed on the CPU of an M4 "
    "where four did not. A large matmul or convolution takes its neighbours along (R082)."
)
_OUTCOMES = {
    "eligible": "eligible, needs device evidence",
    "ineligible": "ineligible (forecast)",
    "unproven": "unproven (forecast)",
}


def summary(forecast: Forecast) -> str:
    """The forecast in one line: outcome, convolutions, compute ops, what was not counted."""
    parts = [_OUTCOMES[forecast.outcome]]
    if convs := forecast.compute.get("conv", 0):
        parts.append(f"conv {forecast.eligible('conv')}/{convs}")
    counts = [plural(forecast.compute_ops, "op")]
    if off := forecast.ineligible():
        counts.append(f"{off} ineligible")
    if warned := forecast.warned():
        counts.append(f"{warned} warned")
    parts.append(f"compute {', '.join(counts)}")
    if forecast.left_out:
        parts.append(f"left out: {_counts(forecast.left_out)}")
    return " · ".join(parts)


def by_rule(findings: Iterator[Finding]) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """Findings grouped by rule, rules in order of their ids; casts follow what they are for."""
    ordered = sorted(findings, key=lambda f: (f.rule, f.type == "cast"))
    for rule, group in groupby(ordered, key=lambda f: f.rule):
        yield rule, tuple(group)


def reason(rule: str, findings: tuple[Finding, ...]) -> str:
    """One sentence for all findings of an ineligible rule, naming the first of them."""
    first = findings[0]
    more = len(findings) - 1
    others = f" (and {more} more)" if more else ""
    return f"{rule}: {first.type} `{first.op}`{others} is ineligible: {_lower(first.why)}"


def listing(forecast: Forecast, outcome: Outcome, *, limit: int | None = None) -> Iterator[str]:
    """Findings of one outcome under their rules, each rule with its source and fix.

    At most `limit` findings are shown; the rest are counted in a last line.
    """
    left = limit
    for rule, findings in by_rule(forecast.of(outcome)):
        if left == 0:
            break
        shown = findings[:left]
        left = None if left is None else left - len(shown)
        yield from _rule(rule, outcome, shown)
    hidden = 0 if limit is None else sum(1 for _ in forecast.of(outcome)) - limit
    if hidden > 0:
        yield f"... and {plural(hidden, 'more finding')}."


def explain(forecast: Forecast, *, os: str = "macOS 26") -> Iterator[str]:
    """The whole forecast in lines for people: what counts, and every rule that applies.

    Raises:
        ManifestError: `os` names no system.
    """
    judged = forecast.under(os)
    yield summary(judged)
    if judged.compute:
        yield f"compute ops: {_counts(judged.compute)}"
    outcomes: tuple[Outcome, ...] = ("ineligible", "warned")
    for outcome in outcomes:
        yield from listing(judged, outcome)
    yield NOTE
    if judged.outcome == "eligible":
        yield WORK_NOTE


def plural(count: int, noun: str) -> str:
    """`1 op`, `2 ops`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _rule(rule_id: str, outcome: Outcome, findings: tuple[Finding, ...]) -> Iterator[str]:
    rule = find(rule_id, outcome)
    yield f"{rule_id} · {outcome} · {rule.title if rule else 'a rule this version does not have.'}"
    for finding in findings:
        why = "" if rule and finding.why == rule.title else f": {finding.why}"
        yield f"  {finding.type} `{finding.op}`{_where(finding)}{why}"
    if rule:
        yield f"  seen: {rule.consequence} ({rule.scope})"
        yield f"  source: {rule.source}"
        yield f"  fix: {rule.fix}"


def _where(finding: Finding) -> str:
    return f" in {finding.function}" if finding.function not in ("", "main") else ""


def _counts(counts: Mapping[str, int]) -> str:
    def named(kind: str, count: int) -> str:
        return plural(count, kind) if kind == BOUNDARY_CAST else f"{count:,} {kind}"

    return ", ".join(named(kind, count) for kind, count in counts.items())


def _lower(sentence: str) -> str:
    """A sentence continued after a colon; acronyms keep their capitals."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]
