"""Every word about a verdict, made of its structure: row, failure, tables, properties, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ane.gates.verdict import Figure, Finding, Verdict, some
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.mlprogram.text import LONGEST, NAME, printable, shown
from pytest_ane.report.table import figure_text, table

_FORECAST = (
    "This is a forecast from documented rules, and a prediction by published costs: which device "
    "runs an op, only a plan recorded on a Mac can say."
)
_VERBS = {"are": "is", "have": "has", "were": "was"}
_WEAKER = ("looser.m", "reference")
"""Figures of limits looser than the default, and of a reference that is the same module."""
_NAMES, _FEW = 20, 3
"""Names in a reason, and in the row; the findings have all."""


def row(verdict: Verdict) -> str:
    """One line, parts joined by ` · `: what is wrong or what decides, then other figures."""
    shown: list[Figure] = []
    warnings = [_brief(verdict, group, shown) for group in _groups(verdict.warnings)]
    parts = [_brief(verdict, group, shown) for group in _groups(verdict.reasons)]
    limited = [f for f in verdict.figures if f.limit is not None and not math.isnan(f.headroom)]
    if (answer := verdict.figure("answer")) is not None and answer not in shown:
        shown.append(answer)
        parts.append(figure_text(answer))
    if verdict.status == "passed" and limited:
        shown.append(min(limited, key=lambda figure: figure.headroom))
        parts.append(figure_text(shown[-1]))
    parts += [figure_text(f) for f in verdict.figures if f.shown and f not in shown]
    parts = list(dict.fromkeys(parts))
    if verdict.status == "passed" and parts:
        # What makes a pass weaker is said wherever the pass is.
        weaker = [text for f in verdict.figures if f.name.startswith(_WEAKER)
                  if (text := figure_text(f)) in parts[1:]]  # fmt: skip
        parts = [", ".join((parts[0], *weaker)), *(p for p in parts[1:] if p not in weaker)]
    if verdict.basis and answer is None:
        basis = verdict.basis.partition(" ")[0]
        parts = [f"{basis}: {' · '.join(parts[:1])}", *parts[1:]]
        parts += [verdict.basis] if basis != verdict.basis else []
    first = parts[:1] if verdict.reasons else []
    parts = [*first, *warnings, *parts[len(first) :]]
    return printable(" · ".join(filter(None, (*parts, verdict.origin))), LONGEST)


def reasons(verdict: Verdict) -> list[str]:
    """What keeps a verdict from passing, and what to do; one for each kind of it."""
    return [_sentence(verdict, group) for group in _groups(verdict.reasons)]


def remarks(verdict: Verdict) -> Iterator[str]:
    """Warnings, then notes."""
    for severity, word in (("warned", "warning: "), ("note", "")):
        findings = [finding for finding in verdict.findings if finding.severity == severity]
        yield from (f"{word}{_sentence(verdict, group)}" for group in _groups(findings))


def failure(verdict: Verdict, weights: str = "", variant: str = "") -> str:
    """The message of a failed gate: what and where, then every reason and remark.

    `weights` says that they are synthetic, `variant` which form of a model the reference is.
    """
    head = f"{verdict.subject}: {verdict.gate} {verdict.status}"
    head += f"; variant {variant}" if variant else ""
    head += f"; weights are {weights}" if weights else ""
    lines = [f"  - {reason}" for reason in reasons(verdict)]
    lines += [f"    {remark}" for remark in remarks(verdict)]
    return "\n".join((printable(head), *lines))


def details(verdict: Verdict, width: int | None = None) -> Iterator[str]:
    """Listed tables, after the remarks on what passed; `width` of the terminal, None in a pipe."""
    if verdict.status == "passed":
        yield from remarks(verdict)
    for found in filter(lambda each: each.listed, verdict.tables):
        yield ""
        yield from (printable(line, LONGEST) for line in table(found, width))
    if verdict.basis == "forecast":
        yield _FORECAST


def properties(verdict: Verdict) -> dict[str, float | int | str]:
    """What JUnit has of a verdict, keyed without `ane.`: all figures, their limits, all reasons."""
    made: dict[str, float | int | str] = {
        "gate": verdict.gate,
        "subject": verdict.subject,
        "status": verdict.status,
        "summary": row(verdict),
        **verdict.values,
        **{f"limit.{f.name}": f.limit for f in verdict.figures if f.limit is not None},
    }
    if verdict.warnings:
        made["warnings"] = len(verdict.warnings)
    if verdict.origin:
        made["evidence"] = verdict.origin
    made = {k: printable(v, LONGEST) if isinstance(v, str) else v for k, v in made.items()}
    if found := reasons(verdict):
        made["reasons"] = "\n".join(found)
    return made


def to_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as strict JSON data with the words that people read, escaped as on a terminal."""
    words = {"status": verdict.status, "summary": row(verdict), "reasons": reasons(verdict)}
    data: dict[str, Any] = shown(strict(verdict) | words)
    return data


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    kinds = (((f.severity, f.kind or number), f) for number, f in enumerate(findings))
    return [*grouped(kinds).values()]


def _brief(verdict: Verdict, group: list[Finding], shown: list[Figure]) -> str:
    if (figure := verdict.figure(group[0].figure)) is not None:
        shown.append(figure)
        return figure_text(figure)
    return _together(verdict, group, _FEW) if group[0].kind else group[0].reason


def _sentence(verdict: Verdict, group: list[Finding]) -> str:
    """A group with what to do; no full stop, for it may end with a command."""
    text = group[0].reason if len(group) == 1 else _together(verdict, group, _NAMES)
    remedy = f"; {group[0].remedy}" if group[0].remedy else ""
    return printable(f"{text}{remedy}", LONGEST)


def _together(verdict: Verdict, group: list[Finding], most: int) -> str:
    """`17 of 19 weights have 2 bits instead of 4: patch, blocks.0.qkv and 15 more`."""
    noun, kind = group[0].where.noun, group[0].kind
    if not noun:
        return group[0].reason
    known = (f.value for f in verdict.figures if f.unit == f"{noun}s" and isinstance(f.value, int))
    count, total = len(group), next(known, 0)
    verb, _, rest = kind.partition(" ")
    verb = _VERBS.get(verb, f"{verb}s") if count == 1 else verb
    of = f" of {total:,}" if total else ""
    names = some((printable(finding.where.name, NAME) for finding in group), most)
    plural = "" if count == 1 and not total else "s"
    return f"{count:,}{of} {noun}{plural} {verb} {rest}: {names}"
