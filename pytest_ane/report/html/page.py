"""The page: everything it shows is made here, of a run's structured verdicts."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pytest_ane.core.verdict import Cell, Figure, Finding, Table, Verdict
from pytest_ane.history.earlier import Earlier
from pytest_ane.report.blame import CAUSE
from pytest_ane.report.figures import amount, figure_text, limit_of
from pytest_ane.report.html import pictures
from pytest_ane.report.html.subjects import Judged, Subject, gates, subjects
from pytest_ane.report.rows import count
from pytest_ane.report.run import Run

if TYPE_CHECKING:
    from pytest_ane.report.charts.picture import Picture

_DRAWN = ("errors", "ane.errors", "program", "palettes", "positions", "ane.positions")
"""Tables that have a picture in place of their rows."""
_WRITEUPS = 20
_CHANGES = 30
"""Changes against the last run that the page lists; shards have their own."""


@dataclass(frozen=True)
class Change:
    """A figure that differs from the last run's."""

    subject: str
    gate: str
    figure: str
    before: str
    after: str
    size: float
    worse: bool


@dataclass(frozen=True)
class Measured:
    """A figure as its row has it."""

    label: str
    value: str
    limit: str
    before: str
    passes: bool
    limited: bool
    room: float


def page(
    run: Run,
    charts: Sequence[Picture] = (),
    notes: Sequence[str] = (),
) -> str:
    """A run as one HTML file.

    Args:
        run: with its verdicts, and the run before it if that is known.
        charts: of whole models; Vega is in the page where there are any.
        notes: what the page could not show, and why.
    """
    found, earlier = subjects(run), run.earlier
    changes = sorted(_changes(found, earlier), key=lambda c: (not c.worse, -c.size))
    models = [s for s in found if s.table("positions") or s.table("drift")]
    return _template("page.html").render(
        run=run,
        facts=run.facts,
        headline=_headline(run),
        red=[s for s in found if s.red],
        counted=count(run.rows),
        subjects=found,
        gates=gates(found),
        changes=changes[:_CHANGES],
        more_changes=max(0, len(changes) - _CHANGES),
        earlier=earlier,
        stacks=[(s, _prompts(s), _texts(s)) for s in models],
        charts=[(c, pictures.grid(c.table)) for c in charts],
        packed=_script_json({s.name: _packed(_detail(run, s, earlier)) for s in found}),
        vega=_vega(charts),
        style=Markup(_text("page.css")),
        code=Markup(_text("page.js")),
        notes=notes,
        writeups=run.writeups[:_WRITEUPS],
        repeat=run.command(),
    )


def _headline(run: Run) -> str:
    """`3 of 137 gates are red`."""
    red = sum(row.red for row in run.rows)
    if not run.rows:
        return "No gate was judged"
    if not red:
        return f"All {len(run.rows)} gates passed" if len(run.rows) > 1 else "The gate passed"
    return f"{red} of {len(run.rows)} gates {'is' if red == 1 else 'are'} red"


def _detail(run: Run, subject: Subject, earlier: Earlier | None) -> str:
    """All that is known of a shard or a model."""
    return _template("detail.html").render(
        subject=subject,
        command=run.command(subject.name) if subject.worst.gate else "",
        sections=[(one, _section(run, one, earlier)) for one in subject.judged],
        ops=pictures.strip(subject),
    )


def _section(run: Run, one: Judged, earlier: Earlier | None) -> dict[str, Any]:
    verdict = one.verdict
    if verdict is None:
        return {"verdict": None, "command": ""}
    before = _before(earlier, one)
    figures = [_measured(f, before.get(f.name)) for f in verdict.figures]
    return {
        "verdict": verdict,
        "command": run.command(one.row.subject, marker=one.gate),
        "findings": verdict.findings,
        "limited": sorted((f for f in figures if f.limited), key=lambda f: f.room),
        "others": [f for f in figures if not f.limited],
        "has_before": bool(before),
        "histograms": [(t.title, pictures.histograms(t)) for t in _named(verdict, "errors")],
        "palettes": [p for t in _named(verdict, "palettes") for p in pictures.palettes(t)],
        "tables": [pictures.grid(t) for t in verdict.tables if t.name not in _DRAWN and t.rows],
    }


def _named(verdict: Verdict, name: str) -> Iterator[Table]:
    yield from (t for t in verdict.tables if t.name in (name, f"ane.{name}"))


def _measured(figure: Figure, before: Cell) -> Measured:
    limit = ""
    if figure.limit is not None:
        sign = "≥" if figure.good == "above" else "≤"
        limit = f"{sign} {limit_of(figure.limit, figure.unit)}"
    value = amount(figure.value, figure.unit)
    if figure.of is not None:
        value = f"{value} of {figure.of:,.0f}"
    then = "" if before is None else amount(before, figure.unit)
    label = f"{figure.label or figure.name}{f' ({figure.note})' if figure.note else ''}"
    return Measured(
        label,
        value,
        limit,
        then if then != amount(figure.value, figure.unit) else "same" if then else "",
        figure.passes,
        figure.limit is not None,
        figure.headroom if figure.passes else -figure.headroom,
    )


def _before(earlier: Earlier | None, one: Judged) -> Mapping[str, Cell]:
    if earlier is None:
        return {}
    return earlier.figures.get((one.gate, one.row.subject, one.row.part), {})


def _changes(found: Sequence[Subject], earlier: Earlier | None) -> Iterator[Change]:
    """Figures with a limit that differ, and any figure that turned to or from a text or NaN."""
    for subject in found:
        for one in subject.judged:
            before = _before(earlier, one)
            for figure in one.verdict.figures if one.verdict else ():
                then = before.get(figure.name)
                if figure.limit is not None and then is not None:
                    yield from _change(one, figure, then)


def _change(one: Judged, figure: Figure, then: Cell) -> Iterator[Change]:
    now = figure.value
    if isinstance(now, str) or isinstance(then, str) or then is None or figure.limit is None:
        return
    texts = amount(then, figure.unit), amount(now, figure.unit)
    if texts[0] == texts[1] and not (math.isnan(now) or math.isnan(then)):
        return
    size = abs(now - then) / (abs(figure.limit) or 1.0)
    worse = math.isnan(now) or (now < then if figure.good == "above" else now > then)
    yield Change(one.row.subject, one.gate, figure.label or figure.name, *texts, size, worse)


def _prompts(subject: Subject) -> list[pictures.Prompt]:
    table = subject.table("positions")
    return pictures.prompts(table) if table else []


def _texts(subject: Subject) -> pictures.Grid | None:
    table = subject.table("texts")
    return pictures.grid(table) if table else None


def _vega(charts: Sequence[Picture]) -> dict[str, Markup]:
    """What draws charts: specifications, themes, and a script that sets `vegaEmbed`."""
    if not charts:
        return {}
    from pytest_ane.report.charts.picture import script, spec, theme

    return {
        "specs": _script_json([spec(chart) for chart in charts]),
        "themes": _script_json({"light": theme(dark=False), "dark": theme(dark=True)}),
        "script": Markup(script().replace("</script", "<\\/script")),
    }


def _packed(text: str) -> str:
    """HTML, compressed for `DecompressionStream`; base64, since a page is text."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _script_json(value: Any) -> Markup:
    """JSON inside of a script element, which ends at the first `</script` in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pytest_ane.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["cause"] = CAUSE
    environment.filters["figure"] = figure_text
    environment.filters["where"] = _where
    return environment


def _template(name: str) -> Template:
    return _environment().get_template(name)


def _text(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]


def _where(finding: Finding) -> str:
    """`weight q_proj`, or nothing where the reason names it."""
    where = finding.where
    if where.name in finding.reason:
        return ""
    at = f" at position {where.position}" if where.position is not None else ""
    return f"{where.noun} {where.name}{at}" if where.noun else at.strip()
