"""Pictures of speed: tokens a second against the bound, a token's time, speculative decoding."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pytest_ane.gates.verdict import Column, Table
from pytest_ane.report.charts.picture import (
    TICKS,
    WIDTH,
    Picture,
    data,
    label,
    number,
    of_json,
    rounded,
)
from pytest_ane.report.figures import amount
from pytest_ane.report.run import Run

_BAR = 26
"""Pixels that a bar takes."""
_BARS = 40
_HEIGHT = 240
_SERIES = ("measured", "needed to pay", "by lookup in this text")


@dataclass(frozen=True)
class _Bar:
    """A speed of a whole model, of `kind` `this run`, `bound` or `measured`, in calls of T tokens.

    Speeds of one machine share a chart.
    """

    machine: str
    name: str
    tok_s: float
    kind: str
    tokens: int = 1


@dataclass(frozen=True)
class _Part:
    """A part of a token's time: `block`, `head`, `host`."""

    machine: str
    name: str
    part: str
    seconds: float


def throughput(run: Run | None, bound: Mapping[str, Any] | None = None) -> tuple[Picture, ...]:
    """Tokens a second against the bound, and a token's time by kind of shards.

    A machine has a picture of its own: speeds of different ones are not compared. So the bound
    stands beside the run's speeds where its device is the run's chip.

    Args:
        run: whose benchmarks; None for the bound alone.
        bound: what `pytest-ane bound --json` printed.

    Returns:
        None of a run without benchmarks and without a bound.
    """
    bars = [*_speeds(run), *_bounds(bound or {})]
    parts = [*_measured_parts(run), *_bound_parts(bound or {})]
    machines = dict.fromkeys([*(bar.machine for bar in bars), *(part.machine for part in parts)])
    pictures: list[Picture] = []
    for machine in machines:
        pictures += _speed(machine, [bar for bar in bars if bar.machine == machine])
        pictures += _time(machine, [part for part in parts if part.machine == machine])
    return tuple(pictures)


def speculation(documents: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Tokens that a verifier call yields, against its width, with what it must yield to pay.

    Args:
        documents: what `pytest-ane speculate --json` printed, of one width each.

    Returns:
        None where no call was made.
    """
    yields = [each for document in documents for each in _yields(document)]
    if not any(each["series"] == "measured" for each in yields):
        return None
    series = [s for s in _SERIES if any(each["series"] == s for each in yields)]
    scale = alt.Scale(domain=series)
    legend = alt.Legend(orient="top", title=None)
    base = alt.Chart(data(yields)).encode(
        x=alt.X("width:Q", title="positions of a call", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("tokens:Q", title="tokens per call"),
        color=alt.Color("series:N", scale=scale, legend=legend),
        strokeDash=alt.StrokeDash("series:N", scale=scale, legend=legend),
        tooltip=[
            alt.Tooltip("series:N"),
            alt.Tooltip("prompt:N"),
            alt.Tooltip("width:Q"),
            alt.Tooltip("shown:N", title="tokens per call"),
        ],
    )
    layers = [
        base.mark_line(opacity=0.6).encode(detail="prompt:N"),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            shape=alt.Shape("series:N", scale=scale, legend=legend)
        ),
    ]
    return Picture(
        "Speculative decoding",
        alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT),
        " ".join(filter(None, map(_verdict, documents))),
        Table(
            "tokens per call",
            tuple(map(Column, ("prompt", "width", "what", "tokens per call"))),
            tuple(
                (each["prompt"], each["width"], each["series"], each["tokens"]) for each in yields
            ),
            "speculation",
        ),
    )


def _yields(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Points of a document: measured, needed, and what other widths would have yielded."""
    speculated, cost = document.get("speculated") or {}, document.get("cost") or {}
    calls, width = len(speculated.get("calls") or ()), document.get("width")
    t1, tv = number(cost.get("t1")), number(cost.get("tv"))
    if not calls or not isinstance(width, int) or not t1 or not tv:
        return
    prompt = label(document.get("prompt"))

    def point(series: str, at: int, tokens: float) -> dict[str, Any]:
        shown = amount(tokens)
        return {
            "series": series, "prompt": prompt, "width": at, "tokens": rounded(tokens),
            "shown": shown,
        }  # fmt: skip

    yield point("measured", width, 1 + speculated["accepted"] / calls)
    yield point("needed to pay", width, tv / t1)
    for each in document.get("widths") or ():
        yield point("by lookup in this text", each["width"], each["tokens_per_call"])


def _verdict(document: Mapping[str, Any]) -> str:
    points = {each["series"]: each["tokens"] for each in _yields(document)}
    if not points:
        return ""
    measured, needed = points["measured"], points["needed to pay"]
    pays = "it pays" if measured > needed else "it does not pay"
    return (
        f"Prompt {label(document.get('prompt'))}, width {document['width']}: a call yields "
        f"{amount(measured)} tokens and must yield {amount(needed)}, so {pays}."
    )


def _speed(machine: str, bars: Sequence[_Bar]) -> list[Picture]:
    if not bars:
        return []
    ranked = sorted(bars, key=lambda bar: -bar.tok_s)
    drawn = ranked[:_BARS]
    base = alt.Chart(
        data(
            {
                "name": label(bar.name), "tok_s": rounded(bar.tok_s), "kind": bar.kind,
                "shown": amount(bar.tok_s, "tok/s"),
            }
            for bar in drawn
        )
    ).encode(y=alt.Y("name:N", sort=None, title=None))  # fmt: skip
    kinds = [k for k in ("this run", "bound", "measured") if any(bar.kind == k for bar in drawn)]
    chart = alt.layer(
        base.mark_bar().encode(
            x=alt.X(
                "tok_s:Q",
                title="tokens a second",
                scale=alt.Scale(zero=True),
                axis=alt.Axis(tickCount=TICKS),
            ),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds),
                legend=alt.Legend(orient="top", title=None) if len(kinds) > 1 else None,
            ),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("shown:N")],
        ),
        base.mark_text(style="word", align="left", dx=4).encode(x="tok_s:Q", text="shown:N"),
    )
    told = f"Tokens a second on {machine}. {_share(bars)}."
    if len(ranked) > _BARS:
        told += f" The fastest {_BARS} of {len(ranked)} are drawn."
    return [
        Picture(
            f"Tokens a second on {machine}",
            chart.properties(width=WIDTH, height=alt.Step(_BAR)),
            told,
            Table(
                f"speeds on {machine}",
                (Column("what"), Column("speed", "tok/s"), Column("kind")),
                tuple((bar.name, bar.tok_s, bar.kind) for bar in ranked),
                "speeds",
            ),
        )
    ]


def _share(bars: Sequence[_Bar]) -> str:
    """The fastest measured speed, and its share of the bound for as many tokens a call."""
    most = {bar.tokens: bar.tok_s for bar in bars if bar.kind == "bound"}
    measured = [bar for bar in bars if bar.kind != "bound"]
    if not measured:
        tokens, rate = next(iter(most.items()))
        return f"At most {amount(rate, 'tok/s')} with T = {tokens}; nothing was measured there"
    fastest = max(measured, key=lambda bar: bar.tok_s)
    bound = most.get(fastest.tokens)
    share = f", {amount(fastest.tok_s / bound, '%')} of the bound" if bound else ""
    return f"{fastest.name}: {amount(fastest.tok_s, 'tok/s')}{share}"


def _time(machine: str, parts: Sequence[_Part]) -> list[Picture]:
    if not parts:
        return []
    kinds = dict.fromkeys(part.part for part in parts)
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        sums[part.name] += part.seconds
    chart = (
        alt.Chart(
            data(
                {
                    "name": label(part.name), "part": label(part.part), "at": i,
                    "ms": rounded(1000 * part.seconds), "shown": amount(part.seconds, "s"),
                    "share": amount(part.seconds / sums[part.name], "%"),
                }
                for i, part in enumerate(parts)
            )
        )
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            y=alt.Y("name:N", sort=None, title=None),
            x=alt.X("ms:Q", title="ms a token", stack="zero", axis=alt.Axis(tickCount=TICKS)),
            order=alt.Order("at:Q"),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=[label(kind) for kind in kinds]),
                legend=alt.Legend(orient="top", title=None),
            ),
            tooltip=[
                alt.Tooltip("name:N"), alt.Tooltip("part:N"), alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("share:N"),
            ],
        )
        .properties(width=WIDTH, height=alt.Step(_BAR))
    )  # fmt: skip
    name = next(iter(sums))
    largest = max((p for p in parts if p.name == name), key=lambda p: p.seconds)
    told = (
        f"Parts of a token's time on {machine}. {name} takes {amount(sums[name], 's')}, most of it "
        f"{largest.part}: {amount(largest.seconds / sums[name], '%')}."
    )
    return [
        Picture(
            f"A token's time on {machine}",
            chart,
            told,
            Table(
                f"a token's time on {machine}",
                (Column("what"), Column("part"), Column("time", "s")),
                tuple((part.name, part.part, part.seconds) for part in parts),
                "time",
            ),
        )
    ]


def _timed(run: Run | None) -> Iterator[tuple[str, str, Mapping[str, Any], dict[str, Any]]]:
    """Benchmarks of a run: machine, subject, verdict, and figures by name."""
    for row in run.rows if run else ():
        if row.gate == "throughput" and row.data:
            figures = {f["name"]: f.get("value") for f in row.data.get("figures") or ()}
            place = row.data.get("provenance") or {}
            machine = ", ".join(filter(None, (_chip(place), _backend(place))))
            yield machine or "an unnamed machine", row.subject, row.data, figures


def _chip(provenance: Mapping[str, Any]) -> str:
    return str(provenance.get("chip") or "").removeprefix("Apple ")


def _backend(provenance: Mapping[str, Any]) -> str:
    """A bound is of the chip; our own executor says nothing of it."""
    return "CPU executor" if provenance.get("backend") == "cpu" else ""


def _speeds(run: Run | None) -> Iterator[_Bar]:
    for machine, subject, _, figures in _timed(run):
        value = number(figures.get("tok_s"))
        # The bound is of whole models, and calls are of single shards.
        if figures.get("what") == "decode" and value is not None and math.isfinite(value):
            yield _Bar(machine, subject, value, "this run")


def _measured_parts(run: Run | None) -> Iterator[_Part]:
    for machine, subject, verdict, _ in _timed(run):
        for row in of_json(verdict, "token"):
            if (seconds := number(row.get("time"))) is not None and seconds > 0:
                yield _Part(machine, subject, str(row.get("part")), seconds)


def _device(bound: Mapping[str, Any]) -> str:
    return str((bound.get("device") or {}).get("name") or "").partition(" with ")[0]


def _bounds(bound: Mapping[str, Any]) -> Iterator[_Bar]:
    for call in bound.get("calls") or ():
        rate, tokens = number(call.get("rate")), call.get("tokens")
        if tokens and rate is not None and math.isfinite(rate):
            yield _Bar(_device(bound), f"at most, T = {tokens}", rate, "bound", tokens)
    for each in bound.get("measured") or ():
        if (rate := number(each.get("tok_s"))) is not None:
            name = f"{each['runtime']}, T = {each['tokens']}"
            yield _Bar(str(each["device"]), name, rate, "measured", each["tokens"])


def _bound_parts(bound: Mapping[str, Any]) -> Iterator[_Part]:
    """The least time of a token, of calls of one."""
    for call in bound.get("calls") or ():
        if call.get("tokens") == 1:
            for kind in call.get("kinds") or ():
                if (seconds := number(kind.get("seconds"))) is not None and seconds > 0:
                    name = f"{bound.get('name')}, at least"
                    yield _Part(_device(bound), name, str(kind.get("kind")), seconds)
