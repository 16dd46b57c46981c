"""The page: everything it shows is made here, of a run's structured verdicts."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pytest_ane.gates.verdict import CAUSE, Cell, Figure, Finding, counted
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.report.answers import Answer, answers
from pytest_ane.report.charts.run import pictures_of, svg
from pytest_ane.report.html import subjects as shown
from pytest_ane.report.html.subjects import Judged, Subject, grid
from pytest_ane.report.run import Run
from pytest_ane.report.table import amount, figure_text, limit_of

_DRAWN = ("program", "positions")
"""Tables that have a picture in place of their rows."""
_WRITEUPS = 20


def page(run: Run) -> str:
    """A run as one HTML file: its verdicts, what differs from the run before it, and charts.

    It holds one script, the page's own, whose digest is in its policy: no other one runs.
    """
    found, notes = shown.subjects(run), list[str]()
    try:
        charts = [(each, Markup(svg(each)), grid(each.table)) for each in pictures_of(run)]
    except ReportError as error:
        charts, notes = [], [str(error)]
    code = _text("page.js")
    models = [s for s in found if s.table("positions") or s.table("drift")]
    return _template("page.html").render(
        run=run,
        facts=run.facts,
        headline=_headline(run),
        red=shown.reds(found),
        answers=[*answers(run.rows), *_since(run)],
        grave=any(row.red for row in run.rows) or bool(run.facts.stopped),
        subjects=found,
        gates=shown.gates(found),
        changes=shown.changes_of(run, found),
        stacks=[
            (s, shown.prompts(s.records("positions")), (table := s.table("texts")) and grid(table))
            for s in models
        ],
        charts=charts,
        packed=_packed(run, found),
        style=Markup(_text("page.css")),
        code=Markup(code),
        policy=f"sha256-{base64.b64encode(sha256(code.encode()).digest()).decode()}",
        notes=notes,
        writeups=run.writeups[:_WRITEUPS],
        repeat=run.command(),
    )


def _since(run: Run) -> Iterator[Answer]:
    """What the run before this was, if one is known."""
    if run.earlier is not None:
        turned = sum(then.label != now.label for then, now in shown.turns_of(run))
        says = f"{counted(turned, 'verdict')} turned since {run.earlier.label}"
        yield Answer("Since when?", "", says if run.before else f"{run.earlier.label} was before")


def _headline(run: Run) -> str:
    judged = [row for row in run.rows if row.gate]
    waiting = sum(row.status == "not run" for row in judged)
    red = sum(row.red for row in judged) - waiting
    broken = len(run.rows) - len(judged)
    warned = sum(row.warned for row in judged)
    parts = [f"{red} of {counted(len(judged), 'gate')} red"]
    if not red and not waiting:
        parts = [f"All {counted(len(judged), 'gate')} passed" if judged else "No gate was judged"]
    parts += [f"{waiting} not run"] if waiting else []
    parts += [f"{warned} with a warning"] if warned else []
    parts += [f"{counted(broken, 'test')} broke down"] if broken else []
    return ", ".join(parts) + (f"; stopped early: {run.facts.stopped}" if run.facts.stopped else "")


def _packed(run: Run, found: Sequence[Subject]) -> Markup:
    """The details by subject, compressed for `DecompressionStream`, as JSON that ends no script."""
    packed = {}
    for subject in found:
        html = _template("detail.html").render(
            subject=subject,
            command=run.command(subject.name) if subject.worst.row.gate else "",
            sections=[(one, _section(run, one)) for one in subject.judged],
            ops=shown.strip(subject),
        )
        packed[subject.name] = base64.b64encode(gzip.compress(html.encode(), 9, mtime=0)).decode()
    text = json.dumps(packed, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _section(run: Run, one: Judged) -> dict[str, Any]:
    if (verdict := one.verdict) is None:
        return {"verdict": None, "command": ""}
    limited = [figure for figure in verdict.figures if figure.limit is not None]
    return {
        "verdict": verdict,
        "command": run.command(one.row.subject, marker=one.row.gate),
        "findings": sorted(verdict.findings, key=lambda finding: finding.kind != CAUSE),
        "limited": sorted(limited, key=lambda f: f.headroom if f.passes else -f.headroom),
        "others": [figure for figure in verdict.figures if figure.limit is None],
        "before": shown.before(run.earlier, one),
        "tables": [grid(t) for t in verdict.tables if t.name not in _DRAWN and t.rows],
    }


def _limit(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return f"{'≥' if figure.good == 'above' else '≤'} {limit_of(figure.limit, figure.unit)}"


def _last(figure: Figure, earlier: Mapping[str, Cell]) -> str:
    if (then := earlier.get(figure.name)) is None:
        return ""
    text = amount(then, figure.unit)
    return "same" if text == amount(figure.value, figure.unit) else text


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pytest_ane.report.html"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["cause"] = CAUSE
    environment.filters |= {
        "amount": amount, "figure": figure_text, "last": _last, "limit": _limit, "where": _where,
        "prose": _prose, "ticks": _ticks, "plain": lambda text: Markup(_prose(text)).striptags(),
    }  # fmt: skip
    return environment


def _prose(text: str) -> Markup:
    """Markdown as HTML without the author's HTML, links and pictures, which lead nowhere here."""
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        return Markup("<pre>{}</pre>").format(text)
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("link_open", lambda *_: "")
    reader.add_render_rule("link_close", lambda *_: "")
    reader.add_render_rule("image", lambda _, tokens, at, *__: Markup.escape(tokens[at].content))
    return Markup(reader.render(text))


def _ticks(text: str) -> Markup:
    """Names between backticks as code."""
    parts = (Markup("<code>{}</code>" if i % 2 else "{}").format(part)
             for i, part in enumerate(text.split("`")))  # fmt: skip
    return Markup("").join(parts) if text.count("`") % 2 == 0 else Markup.escape(text)


def _template(name: str) -> Template:
    return _environment().get_template(name)


def _text(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text("utf-8")


def _where(finding: Finding) -> str:
    if (where := finding.where).name in finding.reason:
        return ""
    at = f" at position {where.position}" if where.position is not None else ""
    return f"{where.noun} {where.name}{at}" if where.noun else at.strip()
