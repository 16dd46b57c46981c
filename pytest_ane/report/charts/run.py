"""The pictures of a run: of its verdicts, of the memory, and of what other commands printed.

A picture is a table, drawn by a Vega-Lite template, with a sentence for those who cannot see it.
`NAME.vl.json` beside this module is a Vega-Lite specification, in which texts such as `"$rows"`
stand for what a picture fills in: the table's rows as records by its columns' titles, where numbers
that are not finite are the texts `NaN` and `infinite`. `svg` renders it without network and
browser, in the colour of the text around it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from pytest_ane.gates.verdict import Cell, Column, Side, Table, rounded, some
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.records.history import Course
from pytest_ane.report.run import Run, comparable
from pytest_ane.report.table import amount, limit_of

_BARS = 40
"""Speeds that are drawn."""
_MARGIN = {"left": 20, "right": 28, "top": 10, "bottom": 10}
"""Pixels around a chart: labels are wider in some readers' fonts than in the renderer's."""
_DIGITS = 4
_LABEL = 60
"""Characters of a name beside an axis."""
_TITLE = 200


def pictures_of(run: Run) -> list[Picture]:
    """All pictures that the data are there for."""

    def printed(command: str) -> list[Mapping[str, Any]]:
        return [document for document in run.documents if document["command"] == command]

    made = [*_stacks(run)]
    made += [drift(document) for document in printed("drift")]
    made += [*throughput(run, next(iter(printed("bound")), None))]
    made += [recommend(document) for document in printed("recommend")]
    made += [_course(run, course) for course in run.courses]
    return [picture for picture in made if picture is not None]


@dataclass(frozen=True)
class Picture:
    """A chart of a template, and the same without seeing it.

    `values` are what the template asks for besides the table's `rows`, or in place of those.
    """

    title: str
    template: str
    description: str
    table: Table
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Names in them may hold what a terminal obeys, and lone surrogates."""
        object.__setattr__(self, "title", printable(self.title, _TITLE))
        object.__setattr__(self, "description", printable(self.description, LONGEST))


def spec(picture: Picture) -> dict[str, Any]:
    """The Vega-Lite specification of a picture, its data inline; strict JSON."""
    values = {"rows": records(picture.table), **picture.values}
    made: dict[str, Any] = _fill(_template(f"{picture.template}.vl.json"), values)
    json.dumps(made, allow_nan=False)
    return made


def svg(picture: Picture, background: str = "transparent") -> str:
    """A picture as SVG, text as text; `ReportError` where the renderer is not installed."""
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise ReportError(
            "Charts need vl-convert-python; run: pip install 'pytest-ane[report]'"
        ) from None
    config = {**_template("theme.json"), "background": background, "padding": _MARGIN}
    made: str = vl_convert.vegalite_to_svg(spec(picture), config=config, allowed_base_urls=[])
    opening, _, rest = made.partition(">")
    title, description = escape(picture.title), escape(picture.description)
    return f"{opening}><title>{title}</title><desc>{description}</desc>{rest}"


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    """A template with values in place of `"$name"`; nothing in a value is replaced again."""
    if isinstance(node, str) and node.startswith("$"):
        return values[node[1:]]
    if isinstance(node, dict):
        return {key: _fill(inner, values) for key, inner in node.items()}
    return [_fill(inner, values) for inner in node] if isinstance(node, list) else node


@cache
def _template(name: str) -> Any:
    return json.loads(files(__package__).joinpath(name).read_text())


def records(table: Table) -> list[dict[str, Cell]]:
    """Rows by the columns' titles; without what is not known."""
    return [
        {title: _drawn(value) for title, value in row.items() if value is not None}
        for row in table.records
    ]


def _drawn(value: Cell) -> Cell:
    if isinstance(value, str):
        return label(value)
    return edge(value) or rounded(value, _DIGITS) if isinstance(value, float) else value


def number(value: Any) -> float | None:
    """A number of JSON, which has NaN and infinities as texts; None for what is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def measure(value: Any) -> float:
    """A finite number above 0 of a document, which an axis has a place for; else `ValueError`."""
    if (found := number(value)) is None or not 0 < found < math.inf:
        raise ValueError(f"{value!r} is no finite number above 0")
    return found


def label(text: object) -> str:
    """A name beside an axis."""
    return printable(str(text), _LABEL)


def rows_of(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Rows of a table of a verdict's JSON data, by the columns' titles; none without the table."""
    tables = {table.get("name"): table for table in data.get("tables") or ()}
    table = tables.get(name) or {"columns": (), "rows": ()}
    titles = [column["title"] for column in table["columns"]]
    return [dict(zip(titles, row, strict=True)) for row in table["rows"]]


def edge(value: float) -> str:
    """The word for a number that no axis has; empty for one that is finite."""
    return "" if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def off_scale(names: Sequence[str]) -> str:
    """The sentence on points that are not finite: marks above the frame."""
    return f" Not finite, and marked above the frame: {some(names, 5)}." if names else ""


def marked(axis: str, name: str, words: str, place: float) -> dict[str, Any]:
    """Values for a line at a `name` of an axis with words beside it; `place` is its share of it."""
    left = place <= 1 / 2
    return {
        "marks": [{axis: name, "words": words}] if name else [],
        "align": "left" if left else "right",
        "dx": 8 if left else -8,
    }


def _stacks(run: Run) -> Iterator[Picture | None]:
    last = {row.asked: row for row in run.before.rows} if run.before else {}
    for row in run.rows:
        if row.gate == "behaviour" and row.data is not None:
            before = last.get(row.asked)
            yield drift(row.data, before.data if before and comparable(row, before) else None)


def drift(verdict: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Picture | None:
    """Relative L2 of hidden states after each shard, this run against the one before.

    Of behaviour's verdict, or what `pytest-ane drift --json` printed; None where there is none.
    """
    now, before = _errors(verdict), _errors(earlier or {})
    if not now:
        return None
    steepest, shards = _steepest(now), list(now)
    runs = ["this run", "the run before"] if before else ["this run"]
    by = "by pytest-ane drift" if "shards" in verdict else ""
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
        ", ".join(filter(None, ("Drift over the layers", verdict.get("basis"), by))),
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
        {"runs": runs, **marked("shard", label(steepest), words, place / len(now))},
    )


def _errors(found: Mapping[str, Any]) -> dict[str, float]:
    if "shards" in found:
        rests = ((s["shard"], s["stack"]["rest"]) for s in found["shards"])
        return {str(shard): float(rest["relative_l2"]) for shard, rest in rests if rest}
    pairs = [(row["shard"], number(row.get("relative L2"))) for row in rows_of(found, "drift")]
    return {str(shard): value for shard, value in pairs if value is not None}


def _steepest(errors: Mapping[str, float]) -> str:
    shards = list(errors)
    if (first := next((s for s in shards if not math.isfinite(errors[s])), "")) or len(shards) < 2:
        return first
    rises = {now: errors[now] - errors[last] for last, now in itertools.pairwise(shards)}
    most = max(rises, key=lambda shard: rises[shard])
    return most if rises[most] > 0 else ""


def _course(run: Run, course: Course) -> Picture | None:
    rows = (row for row in run.rows if row.data and (row.gate, row.subject, row.part) == (
        course.gate, course.subject, course.test))  # fmt: skip
    figures = (f for row in rows for f in (row.data or {}).get("figures", ()))
    now: dict[str, Any] = next((f for f in figures if f["name"] == course.figure), {})
    of = attrgetter("gate", "subject", "test", "figure")
    same = [each for each in run.courses if of(each) == of(course)]
    on = f" on {course.backend}" if len(same) > 1 and course.backend else ""
    return history(
        f"{course.subject} {now.get('label') or course.figure}{on} over commits",
        course.points,
        course.step,
        unit=now.get("unit", ""),
        limit=now.get("limit"),
        good=now.get("good"),
    )


def history(
    title: str,
    series: Sequence[tuple[str, str, float]],
    step: int | None = None,
    *,
    unit: str = "",
    limit: float | None = None,
    good: Side | None = None,
) -> Picture | None:
    """One figure over commits, marked where it stepped; None where nothing was measured.

    `series` has label, time and value of each measurement, the oldest first; labels may repeat.
    `step` is the index of the first one after the step.
    """
    if not series:
        return None
    columns = (Column("commit"), Column("time"), Column("value", unit, limit, good))
    table = Table(title, columns, tuple(series), "history")
    rows = records(table)
    seen: Counter[Cell] = Counter()
    for row in rows:
        # An axis has one place for each name.
        seen[row["commit"]] += 1
        if (count := seen[row["commit"]]) > 1:
            row["commit"] = f"{row['commit']} ({count})"
    told = f"{title}: {amount(len(series), 'measurements')}, "
    told += f"{amount(series[-1][2], unit)} at the last."
    name = words = ""
    if step is not None and 0 < step < len(series):
        name = str(rows[step]["commit"])
        words = " to ".join(amount(value, unit) for _, _, value in series[step - 1 : step + 1])
        told += f" It steps at {series[step][0]}: {words}."
    if limit is not None:
        told += f" The policy asks for at {'least' if good == 'above' else 'most'} "
        told += f"{limit_of(limit, unit)}."
    return Picture(
        title,
        "history",
        told + off_scale([name for name, _, value in series if not math.isfinite(value)]),
        table,
        {
            "rows": rows,
            "unit": unit or None,
            "limits": [] if limit is None else [{"limit": limit}],
            **marked("commit", name, words, (step or 0) / len(series)),
        },
    )


def recommend(document: Mapping[str, Any]) -> Picture | None:
    """Megabytes against KL of every candidate, the frontier, and the gate's line.

    Of what `pytest-ane recommend --json` printed; None where no candidate was measured. KL is NaN
    where a shard's gate failed before.
    """
    limit = number(document.get("max_kl"))
    columns = (
        Column("candidate"), Column("size", "bytes"), Column("KL", "nats", limit, "below"),
        Column("cosine"), Column("top-1", "%"), Column("verdict"), Column("settings"),
    )  # fmt: skip
    if not (candidates := sorted(_candidates(document), key=lambda row: row[1])):
        return None
    table = Table("candidates, the smallest first", columns, tuple(candidates), "candidates")
    passed = [row for row in candidates if row[5] != "failed"]
    told = f"Size against mean KL of {len(candidates)} candidates, of which {len(passed)} passed."
    for name, size, loss, *_, verdict, _ in passed:
        if verdict == "recommended":
            told += f" Recommended is {name}: {amount(size, 'bytes')}, KL {amount(loss, 'nats')}."
    if limit is not None:
        told += f" The gate allows {amount(limit, 'nats')}."
    rows, least = records(table), math.inf
    for row, (_, _, loss, *_) in zip(rows, candidates, strict=True):
        # On the frontier no other is better in bytes and in KL at once.
        if loss < least:
            least, row["frontier"] = loss, True
    words = "" if limit is None else f"the gate's limit, {limit:g}"
    return Picture(
        "Size against KL",
        "recommend",
        told + off_scale([name for name, _, loss, *_ in candidates if edge(loss)]),
        table,
        {
            "rows": rows,
            "limits": [] if limit is None else [{"limit": limit, "words": words}],
        },
    )


def _candidates(document: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    best = (document.get("best") or {}).get("name")
    for each in document.get("candidates") or ():
        name, kl, facts = str(each["name"]), each["kl"], each.get("facts") or {}
        sizes = each.get("settings") or {}
        whole, ranked = sum(sizes.values()), sorted(sizes, key=lambda name: -sizes[name])
        yield (
            name,
            measure(each["size"]),
            math.nan if kl is None else float(kl),
            number(facts.get("cosine")),
            number(facts.get("top1")),
            "recommended" if name == best else "passed" if each["passed"] else "failed",
            ", ".join(f"{n} {amount(sizes[n] / whole, '%')}" for n in ranked if whole),
        )


class _Speed(NamedTuple):
    """Of a whole model, of `kind` `this run`, `bound` or `measured`, in calls of T tokens."""

    machine: str
    name: str
    tok_s: float
    kind: str
    tokens: int = 1


class _Part(NamedTuple):
    """A part of a token's time: `block`, `head`, `host`."""

    machine: str
    name: str
    part: str
    seconds: float


def throughput(run: Run | None, bound: Mapping[str, Any] | None = None) -> Iterator[Picture]:
    """Tokens a second against the bound, and a token's time by kind of shards.

    Each machine has its own picture: speeds of different ones are not compared. `bound` is what
    `pytest-ane bound --json` printed.
    """
    found = [*_measured(run), *(_bounds(bound) if bound else ())]
    for machine in dict.fromkeys(each.machine for each in found):
        here = [each for each in found if each.machine == machine]
        if speeds := [each for each in here if isinstance(each, _Speed)]:
            yield _speed(machine, sorted(speeds, key=lambda speed: -speed.tok_s))
        if parts := [each for each in here if isinstance(each, _Part)]:
            yield _time(machine, parts)


def _speed(machine: str, ranked: Sequence[_Speed]) -> Picture:
    most = {speed.tokens: speed.tok_s for speed in reversed(ranked) if speed.kind == "bound"}
    fastest = next((speed for speed in ranked if speed.kind != "bound"), ranked[0])
    told = f"Tokens a second on {machine}. {fastest.name}: {amount(fastest.tok_s, 'tok/s')}"
    if fastest.kind == "bound":
        least = min(most)
        told = f"Nothing was measured on {machine}: at most {amount(most[least], 'tok/s')}"
        told += f" with T = {least}"
    elif bound := most.get(fastest.tokens):
        # The fastest measured speed, and the bound for as many tokens a call.
        told += f", {amount(fastest.tok_s / bound, '%')} of the bound"
    columns = (Column("what"), Column("speed", "tok/s"), Column("kind"))
    rows = tuple((each.name, each.tok_s, each.kind) for each in ranked)
    table = Table(f"speeds on {machine}", columns, rows, "speeds")
    drawn = {"rows": records(table)[:_BARS]}
    return Picture(f"Tokens a second on {machine}", "speeds", f"{told}.", table, drawn)


def _time(machine: str, parts: Sequence[_Part]) -> Picture:
    first = [part for part in parts if part.name == parts[0].name]
    whole, largest = sum(p.seconds for p in first), max(first, key=lambda part: part.seconds)
    return Picture(
        f"A token's time on {machine}",
        "time",
        f"Parts of a token's time on {machine}. {largest.name} takes {amount(whole, 's')}, most of "
        f"it {largest.part}: {amount(largest.seconds / whole, '%')}.",
        Table(
            f"a token's time on {machine}",
            (Column("what"), Column("part"), Column("time", "s")),
            tuple(part[1:] for part in parts),
            "time",
        ),
    )


def _measured(run: Run | None) -> Iterator[_Speed | _Part]:
    for row in run.rows if run else ():
        if row.gate != "throughput" or not row.data:
            continue
        place = row.data.get("provenance") or {}
        chip = str(place.get("chip") or "").removeprefix("Apple ")
        # A bound is of the chip; our own executor says nothing of it.
        backend = "CPU executor" if place.get("backend") == "cpu" else ""
        machine = ", ".join(filter(None, (chip, backend))) or "an unnamed machine"
        figures = {f["name"]: f.get("value") for f in row.data.get("figures") or ()}
        value = number(figures.get("tok_s"))
        # The bound is of whole models, and calls are of single shards.
        if figures.get("what") == "decode" and value is not None and math.isfinite(value):
            yield _Speed(machine, row.subject, value, "this run")
        for part in rows_of(row.data, "token"):
            if (seconds := number(part.get("time"))) is not None and seconds > 0:
                yield _Part(machine, row.subject, str(part.get("part")), seconds)


def _bounds(bound: Mapping[str, Any]) -> Iterator[_Speed | _Part]:
    machine, least = bound["device"]["name"].partition(" with ")[0], f"{bound['name']}, at least"
    for call in bound.get("calls") or ():
        if tokens := call["tokens"]:
            rate = measure(call["rate"])
            yield _Speed(machine, f"at most, T = {tokens}", rate, "bound", tokens)
        for kind in call["kinds"] if tokens == 1 else ():
            if kind["seconds"]:
                yield _Part(machine, least, str(kind["kind"]), measure(kind["seconds"]))
    for each in bound.get("measured") or ():
        name, rate = f"{each['runtime']}, T = {each['tokens']}", measure(each["tok_s"])
        yield _Speed(str(each["device"]), name, rate, "measured", each["tokens"])
