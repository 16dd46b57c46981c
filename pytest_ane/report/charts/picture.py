"""A picture: a table, drawn by a Vega-Lite template, with a sentence for those who cannot see it.

`NAME.vl.json` beside this module is a Vega-Lite specification, in which texts such as `"$rows"`
stand for what a picture fills in: the table's rows as records by its columns' titles, where numbers
that are not finite are the texts `NaN` and `infinite`. `svg` renders it without network and
browser, in the colour of the text around it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from xml.sax.saxutils import escape

from pytest_ane.gates.verdict import Cell, Table, rounded, some
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.text import LONGEST, printable

_MARGIN = {"left": 20, "right": 28, "top": 10, "bottom": 10}
"""Pixels around a chart: labels are wider in some readers' fonts than in the renderer's."""
_DIGITS = 4
_LABEL = 60
"""Characters of a name beside an axis."""
_TITLE = 200


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
    found = number(value)
    if found is None or not 0 < found < math.inf:
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
    if math.isfinite(value):
        return ""
    return "NaN" if math.isnan(value) else "infinite"


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
