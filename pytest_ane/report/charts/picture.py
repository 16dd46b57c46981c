"""A picture: an altair chart with a sentence and a table for those who cannot see it.

Charts name no colour: marks have styles and ranges, which a theme gives them. So one specification
is drawn in the light and in the dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from pytest_ane.gates.verdict import Cell, Table
from pytest_ane.mlprogram.text import LONGEST, printable

WIDTH = 640
"""Pixels of a chart without its axes."""
TICKS = 6
"""About so many labels have room below it."""
GROUND = {False: "#ffffff", True: "#16191d"}
"""The ground that a theme's colours are chosen for, by whether it is dark."""
PALETTE = ("#2f6fdf", "#d55e00", "#009e73", "#c060a0", "#8a7000", "#6f6fd0", "#7d7d7d")
"""After Okabe and Ito, https://jfly.uni-koeln.de/color/, in tones of a contrast of 3 with either
ground. The colour blind tell the first four apart; no chart has more of what only colour tells."""
ROOT = "square-root scale"
"""The second line of the title of an axis that is none of equal steps."""
_ROOT_TICKS = 4
"""Ticks besides zero: 1, 2 and 5 of a power of ten, those below are close together."""
_MARGIN = 28
"""Pixels around a chart that is a file."""
_DIGITS = 4
_LABEL = 60
"""Characters of a name beside an axis."""
_TITLE = 200

Datum: TypeAlias = "dict[str, float | int | str | bool | None]"


@dataclass(frozen=True)
class Picture:
    """A chart, and the same without seeing it.

    Attributes:
        title: a few words.
        chart: of altair.
        description: what there is to see, in a sentence or two.
        table: the numbers that were drawn.
    """

    title: str
    chart: alt.TopLevelMixin
    description: str
    table: Table

    def __post_init__(self) -> None:
        """Names in them may hold what a terminal obeys, and lone surrogates."""
        object.__setattr__(self, "title", printable(self.title, _TITLE))
        object.__setattr__(self, "description", printable(self.description, LONGEST))


def spec(picture: Picture) -> dict[str, Any]:
    """Vega-Lite's specification of a picture, its data inline and without a theme."""
    made: dict[str, Any] = picture.chart.to_dict()
    # altair's own theme, which a page's replaces.
    made.pop("config", None)
    return made | {"description": picture.description}


def svg(picture: Picture, *, dark: bool = False) -> str:
    """A picture as SVG, text as text; no network."""
    # Labels are wider in some readers' fonts than in the one that they are measured in here.
    config = theme(dark) | {"background": GROUND[dark], "padding": _MARGIN}
    made: str = vl_convert.vegalite_to_svg(spec(picture), config=config, allowed_base_urls=[])
    return made


def theme(dark: bool) -> dict[str, Any]:
    """Vega-Lite's `config` of a light or a dark page; its ground is transparent."""
    text, faint = ("#e6e6e6", "#4a4f57") if dark else ("#1f2328", "#d8dce1")
    bad = "#ff8a65" if dark else "#b3261e"
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', sans-serif",
        "view": {"stroke": faint},
        "mark": {"color": PALETTE[0]},
        "axis": {
            "labelColor": text,
            "titleColor": text,
            "gridColor": faint,
            "domainColor": text,
            "tickColor": text,
            "labelFontSize": 11,
            "titleFontWeight": "normal",
            "labelLimit": 160,
        },
        "legend": {"labelColor": text, "titleColor": text, "labelLimit": 300},
        "header": {"labelColor": text, "titleColor": text, "labelLimit": WIDTH},
        "title": {"color": text},
        "range": {"category": list(PALETTE)},
        "style": {
            "limit": {"color": bad, "strokeDash": [6, 3], "strokeWidth": 1.5},
            "bad": {"color": bad},
            "word": {"color": text, "fontSize": 11, "limit": 300},
            "plain": {"color": text},
        },
    }


@cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which sets `window.vegaEmbed`.

    898 kB (305 kB compressed). Vega alone is 577 kB, but needs charts compiled beforehand, each for
    the light and for the dark.
    """
    made: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed")
    notice = (
        f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]},"
        f" Vega-Embed {vl_convert.get_vega_embed_version()}; {len(made):,} bytes; BSD-3-Clause, "
        "copyright University of Washington Interactive Data Lab, https://github.com/vega"
    )
    return f"/* {notice} */\n{made}"


def number(value: Any) -> float | None:
    """A number of JSON, which has NaN and infinities as texts; None for what is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def rounded(value: float) -> float:
    """As many digits as a chart shows."""
    return float(f"{value:.{_DIGITS}g}")


def label(text: object) -> str:
    """A name beside an axis."""
    return printable(str(text), _LABEL)


def of_json(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Rows of a verdict's table, by the columns' titles; empty where it has no such table.

    Args:
        data: a verdict as `report.verdict.to_json` has it.
        name: of the table.
    """
    tables = {table.get("name"): table for table in data.get("tables") or ()}
    table = tables.get(name) or {"columns": (), "rows": ()}
    titles = [column["title"] for column in table["columns"]]
    return [dict(zip(titles, row, strict=True)) for row in table["rows"]]


def limit_of(data: Mapping[str, Any], figure: str) -> float | None:
    """The limit of a verdict's figure, if it has one."""
    figures = data.get("figures") or ()
    return next((number(f.get("limit")) for f in figures if f.get("name") == figure), None)


def data(rows: Iterable[Mapping[str, Cell]]) -> alt.InlineData:
    """Rows for a chart: strict JSON without what is None."""
    values = [{key: value for key, value in row.items() if value is not None} for row in rows]
    json.dumps(values, allow_nan=False)
    return alt.InlineData(values=values)


def at_edge(chart: alt.Chart) -> alt.Chart:
    """Marks above the frame for what no axis has, at the chart's own x."""
    made: alt.Chart = (
        chart.transform_filter("isValid(datum.edge)")
        .mark_point(shape="triangle-down", filled=True, size=90, opacity=1, style="bad")
        .encode(y=alt.value(-7))
    )
    return made


def edge(value: float) -> str:
    """The word for a number that no axis has; empty for one that is finite."""
    if math.isfinite(value):
        return ""
    return "NaN" if math.isnan(value) else "infinite"


def root_axis(values: Iterable[float]) -> dict[str, Any]:
    """A square-root scale and its axis: zero has a place on it, and small numbers are apart.

    Vega's own ticks are steps of one size, of which such a scale has room for the first alone.

    Args:
        values: all that is drawn; what is not finite is left out.
    """
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    top = math.floor(math.log10(largest)) if largest > 0 else 0
    steps = (step * 10.0**power for power in (top, top - 1) for step in (5, 2, 1))
    below = [rounded(step) for step in steps if step <= largest][:_ROOT_TICKS]
    axis = alt.Axis(values=[0, *reversed(below)], format="~g", labelOverlap="greedy")
    return {"scale": alt.Scale(type="sqrt"), "axis": axis}


def off_scale(names: Sequence[str]) -> str:
    """The sentence on points that are not finite: marks above the frame."""
    if not names:
        return ""
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f" Not finite, and marked above the frame: {some}."


def marked(x: alt.X, name: str, words: str, place: float) -> list[alt.Chart]:
    """A line at a `name` of the axis with words beside it; `place` is its share of the axis."""
    mark = alt.Chart(data([{"name": name, "words": words}])).encode(x=x)
    beside = (
        mark.mark_text(style="word", align="right", dx=-8, dy=-6)
        if place > 1 / 2
        else mark.mark_text(style="word", align="left", dx=8, dy=-6)
    )
    return [
        mark.mark_rule(style="limit"),
        beside.encode(y=alt.value(0), text="words:N"),
    ]
