"""The picture of a search for the smallest compression: megabytes against KL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pytest_ane.gates.verdict import Column, Table
from pytest_ane.report.charts.picture import (
    ROOT,
    TICKS,
    WIDTH,
    Datum,
    Picture,
    at_edge,
    data,
    edge,
    label,
    number,
    off_scale,
    root_axis,
    rounded,
)
from pytest_ane.report.figures import amount

_HEIGHT = 260
_VERDICTS = ("failed", "passed", "recommended")


@dataclass(frozen=True)
class _Candidate:
    """A measured model; `kl` is NaN where a shard's gate failed before."""

    name: str
    size: float
    kl: float
    verdict: str
    cosine: float | None
    top1: float | None
    settings: str
    reason: str


def recommend(document: Mapping[str, Any]) -> Picture | None:
    """Megabytes against KL of every candidate, the frontier, and the gate's line.

    Args:
        document: what `pytest-ane recommend --json` printed.

    Returns:
        None where no candidate was measured.
    """
    candidates = _candidates(document)
    if not candidates:
        return None
    limit = number(document.get("max_kl"))
    frontier = _frontier(candidates)
    rows = [_datum(each, each in frontier) for each in candidates]
    x = alt.X(
        "size:Q",
        title="MB",
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(tickCount=TICKS),
    )
    y = alt.Y(
        "value:Q",
        title=["mean KL, nats", ROOT],
        **root_axis([*(each.kl for each in candidates), limit or 0.0]),
    )
    verdicts = alt.Scale(domain=list(_VERDICTS))
    legend = alt.Legend(orient="top", title=None)
    tooltip = [
        alt.Tooltip("name:N", title="candidate"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("settings:N"),
        alt.Tooltip("megabytes:N", title="size"),
        alt.Tooltip("shown:N", title="KL"),
        alt.Tooltip("top1:N", title="top-1"),
        alt.Tooltip("cosine:N", title="cosine of the worst shard"),
        alt.Tooltip("reason:N"),
    ]
    base = alt.Chart(data(rows)).encode(x=x)
    points = base.mark_point(filled=True, size=80, opacity=1).encode(
        color=alt.Color("verdict:N", scale=verdicts, legend=legend),
        shape=alt.Shape("verdict:N", scale=verdicts, legend=legend),
        tooltip=tooltip,
    )
    layers: list[alt.Chart] = [
        base.transform_filter("datum.frontier")
        .mark_line(style="plain", strokeWidth=1)
        .encode(y=y, order="size:Q"),
        points.transform_filter("isValid(datum.value)").encode(y=y),
        at_edge(base.encode(tooltip=tooltip)),
    ]
    if limit is not None:
        line = alt.Chart(data([{"value": limit, "words": f"the gate's limit, {limit:g}"}]))
        layers += [
            line.mark_rule(style="limit").encode(y=y),
            line.mark_text(style="word", align="left", dx=4, dy=-6).encode(
                x=alt.value(0), y=y, text="words:N"
            ),
        ]
    return Picture(
        "Size against KL",
        alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT),
        _told(candidates, limit) + off_scale([c.name for c in candidates if edge(c.kl)]),
        Table(
            "candidates, the smallest first",
            (
                Column("candidate"),
                Column("size", "bytes"),
                Column("KL", "nats", limit, "below"),
                Column("cosine"),
                Column("top-1", "%"),
                Column("verdict"),
                Column("settings"),
            ),
            tuple(
                (c.name, c.size, c.kl, c.cosine, c.top1, c.verdict, c.settings)
                for c in sorted(candidates, key=lambda c: c.size)
            ),
            "candidates",
        ),
    )


def _candidates(document: Mapping[str, Any]) -> list[_Candidate]:
    best = (document.get("best") or {}).get("name")
    made = []
    for each in document.get("candidates") or ():
        size, kl = number(each.get("size")), number(each.get("kl"))
        if size is None or not math.isfinite(size):
            continue
        verdict = "passed" if each.get("passed") else "failed"
        facts = each.get("facts") or {}
        made.append(
            _Candidate(
                name=str(each.get("name")),
                size=size,
                kl=math.nan if kl is None else kl,
                verdict="recommended" if each.get("name") == best else verdict,
                cosine=number(facts.get("cosine")),
                top1=number(facts.get("top1")),
                settings=_settings(each.get("settings") or {}),
                reason=next(map(str, each.get("reasons") or ()), ""),
            )
        )
    return made


def _settings(sizes: Mapping[str, Any]) -> str:
    """`four 93.0%, eight 7.0%`: settings by their share of the weights' bytes."""
    known = {name: size for name, given in sizes.items() if (size := number(given)) is not None}
    whole = sum(known.values())
    ranked = sorted(known, key=lambda name: -known[name])
    return ", ".join(f"{name} {amount(known[name] / whole, '%')}" for name in ranked if whole)


def _frontier(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Candidates that no other beats in bytes and in KL at once."""
    kept: list[_Candidate] = []
    for each in sorted(candidates, key=lambda c: (c.size, c.kl if math.isfinite(c.kl) else 0)):
        if math.isfinite(each.kl) and (not kept or each.kl < kept[-1].kl):
            kept.append(each)
    return kept


def _datum(each: _Candidate, frontier: bool) -> Datum:
    made: Datum = {
        "name": label(each.name),
        "size": rounded(each.size / 1e6),
        "megabytes": amount(each.size, "bytes"),
        "shown": amount(each.kl, "nats"),
        "verdict": each.verdict,
        "settings": label(each.settings),
        "frontier": frontier,
    }
    made |= {"cosine": amount(each.cosine)} if each.cosine is not None else {}
    made |= {"top1": amount(each.top1, "%")} if each.top1 is not None else {}
    made |= {"reason": label(each.reason)} if each.reason else {}
    return made | ({"edge": edge(each.kl)} if edge(each.kl) else {"value": rounded(each.kl)})


def _told(candidates: Sequence[_Candidate], limit: float | None) -> str:
    passed = [c for c in candidates if c.verdict != "failed"]
    told = f"Size against mean KL of {len(candidates)} candidates, of which {len(passed)} passed."
    best = next((c for c in candidates if c.verdict == "recommended"), None)
    if best is not None:
        told += (
            f" Recommended is {best.name}: {amount(best.size, 'bytes')}, "
            f"KL {amount(best.kl, 'nats')}."
        )
    return told + (f" The gate allows {amount(limit, 'nats')}." if limit is not None else "")
