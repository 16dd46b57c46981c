"""The table of a search: measured candidates, in bytes and by the gates' figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_ane.report.table import columns
from pytest_ane.tools._recommend.search import Candidate

_HEAD = ("candidate", "MB", "cosine", "top-1", "KL", "centred", "verdict")


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that no other beats in bytes and in KL at once, smallest first."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.size, _or_inf(c.kl))):
        if not kept or _or_inf(candidate.kl) < min(_or_inf(c.kl) for c in kept):
            kept.append(candidate)
    return kept


def table(candidates: Sequence[Candidate], marked: Candidate | None) -> Iterator[str]:
    """Lines of the table; the recommended one is marked."""
    shown = pareto(candidates)
    extra = [c for c in candidates if c.passed and c not in shown]
    rows = [_row(c, marked) for c in sorted([*shown, *extra], key=lambda c: c.size)]
    yield from columns([_HEAD, *rows], last=True)


def line(candidate: Candidate) -> str:
    """`mixed 3: 105.1 MB, KL 0.0381, passed`, or the first reason why not."""
    kl = f", KL {candidate.kl:.4f}" if not math.isnan(candidate.kl) else ""
    head = f"{candidate.name}: {candidate.size / 1e6:.1f} MB{kl}"
    if candidate.passed:
        return f"{head}, passed"
    more = f" (and {len(candidate.reasons) - 1} more)" if len(candidate.reasons) > 1 else ""
    return f"{head}, failed: {candidate.reasons[0]}{more}"


def _row(candidate: Candidate, marked: Candidate | None) -> tuple[str, ...]:
    facts = candidate.facts
    verdict = "passed" if candidate.passed else "failed"
    return (
        candidate.name,
        f"{candidate.size / 1e6:.1f}",
        _number(facts.get("cosine"), ".4f"),
        _number(facts.get("top1"), ".1%"),
        _number(candidate.kl, ".4f"),
        _number(facts.get("centred_cosine.min"), ".4f"),
        f"{verdict}, recommended" if candidate is marked else verdict,
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _or_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value
