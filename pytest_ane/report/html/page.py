"""The page: everything it shows is made here, of a run's structured verdicts."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pytest_ane.gates.verdict import Cell, Figure, Finding, Table, Verdict
from pytest_ane.records.history import Earlier
from pytest_ane.report.figures import amount, figure_text, limit_of
from pytest_ane.report.html import pictures
from pytest_ane.report.html.changes import before, changes_of
from pytest_ane.report.html.subjects import Judged, Subject, gates, subjects
from pytest_ane.report.rows import count
from pytest_ane.report.run import Run
from pytest_ane.tools._blame_words import CAUSE

if TYPE_CHECKING:
    from pytest_ane.report.charts.picture import Picture

_DRAWN = ("errors", "ane.errors", "program", "palettes", "positions", "ane.positions")
"""Tables that have a picture in place of their rows."""
_WRITEUPS = 20


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
    models = [s for s in found if s.table("positions") or s.table("drift")]
    return _template("page.html").render(
        run=run,
        facts=run.facts,
        headline=_headline(run),
        red=[s for s in found if s.red],
        counted=count(run.rows) if any(row.gate for row in run.rows) else "",
        grave=any(row.red for row in run.rows) or bool(run.facts.stopped),
        subjects=found,
        gates=gates(found),
        changes=changes_of(run, found),
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
    """`3 of 137 gates are red`; what was not run, broke down or was stopped is said too."""
    judged = [row for row in run.rows if row.gate]
    waiting = sum(row.status == "not run" for row in judged)
    red = sum(row.red for row in judged) - waiting
    broken = len(run.rows) - len(judged)
    warned = sum(row.warned for row in judged)
    parts = []
    if red:
        parts.append(f"{red} of {len(judged)} gates {'is' if red == 1 else 'are'} red")
    if waiting:
        parts.append(f"{waiting} of {len(judged)} {'was' if waiting == 1 else 'were'} not run")
    if not parts and judged:
        parts.append(f"All {len(judged)} gates passed" if len(judged) > 1 else "The gate passed")
        parts += [f"{warned} with a warning"] if warned else []
    if broken:
        parts.append(f"{broken} test{'' if broken == 1 else 's'} broke down")
    if not judged:
        parts.append("no gate was judged" if parts else "No gate was judged")
    return ", ".join(parts) + (f"; stopped early: {run.facts.stopped}" if run.facts.stopped else "")


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
    then = before(earlier, one)
    figures = [_measured(f, then.get(f.name)) for f in verdict.figures]
    return {
        "verdict": verdict,
        "command": run.command(one.row.subject, marker=one.gate),
        "findings": sorted(verdict.findings, key=lambda finding: finding.kind != CAUSE),
        "limited": sorted((f for f in figures if f.limited), key=lambda f: f.room),
        "others": [f for f in figures if not f.limited],
        "has_before": bool(then),
        "histograms": [(t.title, pictures.histograms(t)) for t in _named(verdict, "errors")],
        "palettes": [p for t in _named(verdict, "palettes") for p in pictures.palettes(t)],
        "tables": [pictures.grid(t) for t in verdict.tables if t.name not in _DRAWN and t.rows],
    }


def _named(verdict: Verdict, name: str) -> Iterator[Table]:
    yield from (t for t in verdict.tables if t.name in (name, f"ane.{name}"))


def _measured(figure: Figure, earlier: Cell) -> Measured:
    limit = ""
    if figure.limit is not None:
        sign = "≥" if figure.good == "above" else "≤"
        limit = f"{sign} {limit_of(figure.limit, figure.unit)}"
    value = amount(figure.value, figure.unit)
    if figure.of is not None:
        value = f"{value} of {figure.of:,.0f}"
    then = "" if earlier is None else amount(earlier, figure.unit)
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
    environment.filters["prose"] = _prose
    environment.filters["plain"] = lambda text: Markup(_prose(text)).striptags()
    return environment


def _prose(text: str) -> Markup:
    """Markdown as HTML without the author's HTML, links and pictures; as it is without the library.

    A page is one file, so that links and pictures of files beside a write-up lead nowhere.
    """
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        return Markup("<pre>{}</pre>").format(text)
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, rule in _LEFT_OUT.items():
        reader.add_render_rule(name, rule)
    return Markup(reader.render(text))


def _nothing(*_: Any) -> str:
    return ""


def _alternative(_: Any, tokens: Sequence[Any], at: int, *__: Any) -> str:
    """A picture's text, which stands for it."""
    return str(Markup.escape(tokens[at].content))


_LEFT_OUT = {"link_open": _nothing, "link_close": _nothing, "image": _alternative}


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
