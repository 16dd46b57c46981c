"""Pictures of a whole stack: where hidden states drift, and where predictions change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pytest_ane.gates.verdict import Column, Table, some
from pytest_ane.report.charts.picture import (
    Picture,
    label,
    marked,
    number,
    off_scale,
    records,
    root_ticks,
    rows_of,
)
from pytest_ane.report.figures import amount

_NOW, _LAST = "this run", "the run before"
_PANELS = 8
"""Prompts that have a panel: those of the largest KL."""
_POINTS = 400
"""Points of a panel; of more positions, each point is the worst of several."""


def drift(verdict: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Picture | None:
    """Relative L2 of hidden states after each shard, this run against the one before.

    Of behaviour's verdict, or what `pytest-ane drift --json` printed; None where there is none.
    """
    now, before = _errors(verdict), _errors(earlier or {})
    if not now:
        return None
    steepest, shards = _steepest(now), list(now)
    runs = [_NOW, _LAST] if before else [_NOW]
    told = f"Relative L2 of the hidden states after {amount(len(now), 'shards')}, "
    told += f"{amount(now[shards[-1]])} at the end."
    place, words = shards.index(steepest) if steepest else 0, ""
    if steepest:
        before_it = amount(now[shards[place - 1]]) if place else "0"
        words = f"{before_it} to {amount(now[steepest])}"
        told += f" It rises most at {steepest}: {words}."
    if before:
        told += f" The run before had {amount([*before.values()][-1])} at its end."
    return Picture(
        _titled("Drift over the layers", verdict)
        + (", by pytest-ane drift" if "shards" in verdict else ""),
        "drift",
        told + off_scale([s for s in now if not math.isfinite(now[s])]),
        Table(
            "relative L2 after each shard",
            tuple(map(Column, ("shard", *runs))),
            tuple(
                (shard, value, *([before.get(shard)] if before else []))
                for shard, value in now.items()
            ),
            "drift",
        ),
        {"runs": runs, "ticks": root_ticks([*now.values(), *before.values()])}
        | marked("shard", label(steepest), words, place / len(now)),
    )


def _titled(title: str, verdict: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (title, verdict.get("basis"))))


def _errors(found: Mapping[str, Any]) -> dict[str, float]:
    if "shards" in found:
        rests = ((s["shard"], s["stack"]["rest"]) for s in found["shards"])
        return {str(shard): float(rest["relative_l2"]) for shard, rest in rests if rest}
    pairs = [(row["shard"], number(row.get("relative L2"))) for row in rows_of(found, "drift")]
    return {str(shard): value for shard, value in pairs if value is not None}


def _steepest(errors: Mapping[str, float]) -> str:
    """The shard after which the error is greater by most; the first that is not finite."""
    shards = list(errors)
    if (first := next((s for s in shards if not math.isfinite(errors[s])), "")) or len(shards) < 2:
        return first
    rises = {now: errors[now] - errors[last] for last, now in itertools.pairwise(shards)}
    most = max(rises, key=lambda shard: rises[shard])
    return most if rises[most] > 0 else ""


class _Position(NamedTuple):
    prompt: str
    position: int
    text: str
    kl: float
    bad: str

    @property
    def rank(self) -> float:
        """The larger, the worse; what is not finite is worst."""
        return self.kl if math.isfinite(self.kl) else math.inf


def kl(verdict: Mapping[str, Any]) -> Picture | None:
    """KL of each position's prediction, a panel for each prompt; None without positions."""
    prompts = _positions(verdict)
    if not prompts:
        return None
    figures = verdict.get("figures") or ()
    limit = next((number(f.get("limit")) for f in figures if f.get("name") == "kl.mean"), None)
    ranked = sorted(prompts, key=lambda name: -max(each.rank for each in prompts[name]))
    drawn = {name: prompts[name] for name in prompts if name in ranked[:_PANELS]}
    firsts = [first for of in drawn.values() if (first := next((p for p in of if p.bad), None))]
    every = [position for positions in prompts.values() for position in positions]
    told = f"KL at {amount(len(every), 'positions')} of {amount(len(prompts), 'prompts')}"
    told += f", of which {len(drawn)} are drawn." if len(drawn) < len(prompts) else "."
    bad = [f"{first.position} of {first.prompt}, {first.text!r}" for first in firsts]
    told += f" First bad positions: {some(bad, 3)}." if bad else " No position is bad."
    if (size := max(map(_stretch, drawn.values()))) > 1:
        told += f" A point is the worst of up to {size} positions."
    if limit is not None:
        told += f" The policy's limit of the mean is {amount(limit, 'nats')}."
    odd = [f"{each.prompt} at {each.position}" for each in every if not math.isfinite(each.kl)]
    points = [point for of in drawn.values() for point in _worst(of, firsts)]
    return Picture(
        _titled("KL at each position", verdict),
        "kl",
        told + off_scale(odd),
        _table(every),
        {
            "rows": _rows(points, firsts, limit),
            "prompts": [label(name) for name in drawn],
            "ticks": root_ticks([*(each.kl for each in points), limit or 0.0]),
        },
    )


def _table(positions: Sequence[_Position]) -> Table:
    units = {"KL": "nats"}
    titles = ("prompt", "position", "text", "KL", "bad")
    columns = tuple(Column(title, units.get(title, "")) for title in titles)
    return Table("positions", columns, tuple(positions), "kl")


def _rows(
    points: Sequence[_Position], firsts: Sequence[_Position], limit: float | None
) -> list[dict[str, Any]]:
    """One table for all layers: a facet draws of it what has its prompt."""
    rows: list[dict[str, Any]] = [*records(_table(points))]
    for row, point in zip(rows, points, strict=True):
        if point in firsts:
            row["first"] = f"first bad: {label(point.text) or point.position}"
    if limit is not None:
        for row in {row["prompt"]: row for row in reversed(rows)}.values():
            row["limit"] = limit
        rows[0]["words"] = f"limit of the mean: {limit:g}"
    return rows


def _positions(verdict: Mapping[str, Any]) -> dict[str, list[_Position]]:
    prompts: dict[str, list[_Position]] = {}
    for row in rows_of(verdict, "positions"):
        value, at, prompt = number(row.get("KL")), number(row.get("position")), str(row["prompt"])
        if value is not None and at is not None:
            bad = "bad" if row.get("bad") == "yes" else ""
            found = _Position(prompt, int(at), str(row.get("text") or ""), value, bad)
            prompts.setdefault(prompt, []).append(found)
    return prompts


def _worst(positions: Sequence[_Position], firsts: Sequence[_Position]) -> list[_Position]:
    """At most so many as a panel has room for: the worst of each stretch, and the first bad."""
    size = _stretch(positions)
    stretches = (positions[i : i + size] for i in range(0, len(positions), size))
    worst = {max(stretch, key=lambda each: each.rank) for stretch in stretches}
    return [each for each in positions if each in worst or each in firsts]


def _stretch(positions: Sequence[_Position]) -> int:
    return math.ceil(len(positions) / _POINTS)
