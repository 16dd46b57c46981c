"""Pictures of a whole stack: where hidden states drift, and where predictions change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pytest_ane.gates.verdict import Column, Table
from pytest_ane.report.charts.picture import (
    ROOT,
    WIDTH,
    Datum,
    Picture,
    at_edge,
    data,
    edge,
    label,
    limit_of,
    marked,
    number,
    of_json,
    off_scale,
    root_axis,
    rounded,
)
from pytest_ane.report.figures import amount

_NOW, _LAST = "this run", "the run before"
_PANELS = 8
"""Prompts that have a panel: those of the largest KL."""
_POINTS = 400
"""Points of a panel; of more positions, each point is the worst of several."""
_HEIGHT = 220
_PANEL = 100
_BAD = (
    "Bad is a position whose logits are not finite or all equal, whose centred cosine is below "
    "min-centred-cosine, or that predicts another token where the reference's margin is no tie "
    "(tie-margin); position 0 is bad in the first case alone."
)


def drift(verdict: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Picture | None:
    """Relative L2 of hidden states after each shard, this run against the one before.

    Args:
        verdict: of behaviour, as JSON data; or what `pytest-ane drift --json` printed.
        earlier: the same of the run before, if there is one.

    Returns:
        None where the data hold no drift.
    """
    now, before = _errors(verdict), _errors(earlier or {})
    if not now:
        return None
    steepest = _steepest(now)
    rows = [
        _datum(shard, value, run)
        for run, errors in ((_NOW, now), (_LAST, before))
        for shard, value in errors.items()
    ]
    x = alt.X("name:O", sort=None, title=None, axis=alt.Axis(labelOverlap="greedy"))
    runs = alt.Scale(domain=[_NOW, _LAST] if before else [_NOW])
    legend = alt.Legend(orient="top", title=None) if before else None
    base = alt.Chart(data(rows)).encode(
        x=x,
        color=alt.Color("run:N", scale=runs, legend=legend),
        strokeDash=alt.StrokeDash("run:N", scale=runs, legend=legend),
        tooltip=[
            alt.Tooltip("name:N", title="shard"),
            alt.Tooltip("run:N"),
            alt.Tooltip("shown:N"),
        ],
    )
    y = alt.Y(
        "value:Q",
        title=f"relative L2, {ROOT}",
        **root_axis([*now.values(), *before.values()]),
    )
    layers: list[alt.Chart] = [
        base.transform_filter(alt.datum.run == run).mark_line(point=True).encode(y=y)
        for run in (*([_LAST] if before else []), _NOW)
    ]
    layers.append(at_edge(base))
    if steepest:
        layers += marked(
            x, label(steepest), _words(now, steepest), list(now).index(steepest) / len(now)
        )
    end = amount(list(now.values())[-1])
    odd = [shard for shard, value in now.items() if not math.isfinite(value)]
    told = f"Relative L2 of the hidden states after {amount(len(now), 'shards')}, {end} at the end."
    told += f" {_steep(now, steepest)}" if steepest else ""
    told += f" {_before(now, before)}" if before else ""
    return Picture(
        _titled("Drift over the layers", verdict)
        + (", by pytest-ane drift" if "shards" in verdict else ""),
        alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT),
        told + off_scale(odd),
        Table(
            "relative L2 after each shard",
            (Column("shard"), Column(_NOW), *((Column(_LAST),) if before else ())),
            tuple(
                (shard, value, *((before.get(shard),) if before else ()))
                for shard, value in now.items()
            ),
            "drift",
        ),
    )


def _titled(title: str, verdict: Mapping[str, Any]) -> str:
    """With the arithmetic, unless it is typed."""
    return ", ".join(filter(None, (title, verdict.get("basis"))))


@dataclass(frozen=True)
class _Position:
    """A position of a prompt; what is not known is None."""

    position: int
    text: str
    kl: float
    top1: str
    cosine: float | None
    bad: bool

    @property
    def rank(self) -> float:
        """The larger, the worse; what is not finite is worst."""
        return self.kl if math.isfinite(self.kl) else math.inf


def kl(verdict: Mapping[str, Any]) -> Picture | None:
    """KL of each position's prediction, a panel for each prompt, the first bad one marked.

    Args:
        verdict: of behaviour, as JSON data.

    Returns:
        None where the data hold no positions.
    """
    prompts = _positions(verdict)
    if not prompts:
        return None
    limit = limit_of(verdict, "kl.mean")
    ranked = sorted(prompts, key=lambda name: -max(each.rank for each in prompts[name]))
    drawn = [name for name in prompts if name in ranked[:_PANELS]]
    rows = [_panel_datum(name, each) for name in drawn for each in _worst(prompts[name])]
    firsts = {name: next((p for p in prompts[name] if p.bad), None) for name in drawn}
    told = _counted(prompts)
    if (over := len(prompts) - len(drawn)) > 0:
        told += f" The {_PANELS} prompts of the largest KL are drawn, and {over} are not."
    told += " " + _first_bad({name: at for name, at in firsts.items() if at}) + f" {_BAD}"
    size = max(_stretch(prompts[name]) for name in drawn)
    told += f" Where a text is long, each point is the worst of {size} positions." * (size > 1)
    if limit is not None:
        told += f" The dashed line, {amount(limit, 'nats')}, is the policy's limit of the mean "
        told += "over all positions; a single position may be above it."
    odd = [
        f"{name} at {each.position}"
        for name, positions in prompts.items()
        for each in positions
        if not math.isfinite(each.kl)
    ]
    return Picture(
        _titled("KL at each position", verdict),
        _panels(rows, drawn, firsts, limit),
        told + off_scale(odd),
        Table(
            "positions",
            (
                Column("prompt"),
                Column("position"),
                Column("text"),
                Column("KL", "nats"),
                Column("bad"),
            ),
            tuple(
                (name, p.position, p.text, p.kl, "bad" if p.bad else "")
                for name in prompts
                for p in prompts[name]
            ),
            "kl",
        ),
    )


def _panels(
    rows: Sequence[Datum],
    names: Sequence[str],
    firsts: Mapping[str, _Position | None],
    limit: float | None,
) -> alt.TopLevelMixin:
    """One row of the facet for each prompt; data of all layers are in one table."""
    marks: list[Datum] = [
        {
            "prompt": label(name),
            "position": first.position,
            "first": f"first bad: {label(first.text) or first.position}",
            **({"at": rounded(first.kl)} if math.isfinite(first.kl) else {}),
        }
        for name, first in firsts.items()
        if first
    ]
    # A facet shows what has its prompt, so each has a limit of its own.
    limits: list[Datum] = (
        [] if limit is None else [{"prompt": label(name), "limit": limit} for name in names]
    )
    if limits:
        limits[0]["words"] = f"limit of the mean: {limit:g}"
    chart = alt.Chart()
    x = alt.X("position:Q", title="position", axis=alt.Axis(tickMinStep=1))
    axes = root_axis([*(number(row.get("value")) or 0.0 for row in rows), limit or 0.0])
    scale = axes["scale"]
    tooltip = [
        alt.Tooltip("prompt:N"),
        alt.Tooltip("position:Q"),
        alt.Tooltip("text:N"),
        alt.Tooltip("shown:N", title="KL"),
        alt.Tooltip("top1:N", title="top-1"),
        alt.Tooltip("cosine:N", title="centred cosine"),
    ]
    drawn = chart.transform_filter("isValid(datum.shown)").encode(
        x=x, y=alt.Y("value:Q", title=["KL, nats", ROOT], **axes)
    )
    layers = [
        drawn.mark_line(),
        drawn.mark_circle(size=28, opacity=1).encode(tooltip=tooltip),
        at_edge(chart.encode(x=x, tooltip=tooltip)),
        chart.transform_filter("isValid(datum.limit)")
        .mark_rule(style="limit")
        .encode(y=alt.Y("limit:Q", scale=scale)),
        chart.transform_filter("isValid(datum.words)")
        .mark_text(style="word", align="right", dx=-4, dy=-6)
        .encode(x=alt.value(WIDTH), y=alt.Y("limit:Q", scale=scale), text="words:N"),
        chart.transform_filter("isValid(datum.first)")
        .mark_point(size=140, strokeWidth=2, style="bad")
        .encode(x=x, y=alt.Y("at:Q", scale=scale)),
        chart.transform_filter("isValid(datum.first)")
        .mark_text(style="word", align="left", dx=4, dy=-4)
        .encode(x=x, y=alt.value(0), text="first:N"),
    ]
    made: alt.FacetChart = (
        alt.layer(*layers, data=data([*rows, *marks, *limits]))
        .properties(width=WIDTH, height=_PANEL)
        .facet(
            row=alt.Row(
                "prompt:N",
                sort=[label(name) for name in names],
                title=None,
                header=alt.Header(labelAngle=0, labelOrient="top", labelAnchor="start"),
            )
        )
    )
    return made


def _errors(found: Mapping[str, Any]) -> dict[str, float]:
    """Relative L2 by shard, in running order."""
    if "shards" in found:
        rests = ((s["shard"], (s.get("stack") or {}).get("rest") or {}) for s in found["shards"])
        pairs = [(shard, number(rest.get("relative_l2"))) for shard, rest in rests]
    else:
        rows = of_json(found, "drift")
        pairs = [(row["shard"], number(row.get("relative L2"))) for row in rows]
    return {str(shard): value for shard, value in pairs if value is not None}


def _datum(shard: str, value: float, run: str) -> Datum:
    made: Datum = {"name": label(shard), "run": run, "shown": amount(value)}
    return made | ({"edge": edge(value)} if edge(value) else {"value": rounded(value)})


def _steepest(errors: Mapping[str, float]) -> str:
    """The shard after which the error is greater by most; the first that is not finite."""
    shards = list(errors)
    if (first := next((s for s in shards if not math.isfinite(errors[s])), "")) or len(shards) < 2:
        return first
    rises = {now: errors[now] - errors[last] for last, now in itertools.pairwise(shards)}
    most = max(rises, key=lambda shard: rises[shard])
    return most if rises[most] > 0 else ""


def _rise(errors: Mapping[str, float], shard: str) -> str:
    """`0.0200 to 0.5000`, before and after a shard that is not the first."""
    shards = list(errors)
    return f"{amount(errors[shards[shards.index(shard) - 1]])} to {amount(errors[shard])}"


def _words(errors: Mapping[str, float], shard: str) -> str:
    """What the mark at the steepest shard says."""
    if word := edge(errors[shard]):
        return f"{word} from here on"
    return f"rises most here: {_rise(errors, shard)}"


def _steep(errors: Mapping[str, float], shard: str) -> str:
    """The same as a sentence."""
    if word := edge(errors[shard]):
        return f"It is {word} from {shard} on."
    return f"It rises most at {shard}: {_rise(errors, shard)}."


def _before(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    last = [shard for shard in now if shard in before]
    if not last:
        return "The run before has none of these shards."
    return f"The run before had {amount(before[last[-1]])} after {last[-1]}."


def _positions(verdict: Mapping[str, Any]) -> dict[str, list[_Position]]:
    """Positions by prompt, in the order of the table."""
    prompts: dict[str, list[_Position]] = {}
    for row in of_json(verdict, "positions"):
        value, at = number(row.get("KL")), number(row.get("position"))
        if value is None or at is None:
            continue
        prompts.setdefault(str(row.get("prompt")), []).append(
            _Position(
                position=int(at),
                text=str(row.get("text") or ""),
                kl=value,
                top1=str(row.get("top-1") or ""),
                cosine=number(row.get("centred cosine")),
                bad=row.get("bad") == "yes",
            )
        )
    return prompts


def _worst(positions: Sequence[_Position]) -> list[_Position]:
    """At most so many as a panel has room for, the worst of each stretch."""
    size = _stretch(positions)
    stretches = (positions[i : i + size] for i in range(0, len(positions), size))
    return [max(stretch, key=lambda each: each.rank) for stretch in stretches]


def _stretch(positions: Sequence[_Position]) -> int:
    """Positions that one point stands for."""
    return math.ceil(len(positions) / _POINTS)


def _panel_datum(prompt: str, each: _Position) -> Datum:
    made: Datum = {
        "prompt": label(prompt),
        "position": each.position,
        "text": label(each.text),
        "shown": amount(each.kl, "nats"),
    }
    if each.top1:
        made["top1"] = each.top1
    if each.cosine is not None:
        made["cosine"] = amount(each.cosine)
    # KL is 0 or more but for rounding.
    return made | (
        {"edge": edge(each.kl)} if edge(each.kl) else {"value": max(0.0, rounded(each.kl))}
    )


def _counted(prompts: Mapping[str, Sequence[_Position]]) -> str:
    """How many positions are drawn, and how many of them the gate judges."""
    positions = [each.position for each in itertools.chain.from_iterable(prompts.values())]
    judged = sum(at > 0 for at in positions)
    told = f"KL at {amount(len(positions), 'positions')} of {amount(len(prompts), 'prompts')}"
    return told + (
        f": {judged} that the gate judges, and position 0 of each, which it reports apart."
        if judged < len(positions)
        else "."
    )


def _first_bad(firsts: Mapping[str, _Position]) -> str:
    if not firsts:
        return "No position is bad."
    name, at = next(iter(firsts.items()))
    more = f"; {len(firsts) - 1} more prompts have one" if len(firsts) > 1 else ""
    return f"The first bad position of {name} is {at.position}, {at.text!r}{more}."
