"""Themes, the script, and hostile names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import dist
from typing import Any

import pytest
from hypothesis import given, settings

from pytest_ane.report.charts.history import history
from pytest_ane.report.charts.picture import (
    GROUND,
    PALETTE,
    Picture,
    root_axis,
    script,
    spec,
    svg,
    theme,
)
from pytest_ane.report.charts.search import recommend
from tests.hostile import HOSTILE, check_lines
from tests.report.charts.drawn import drawn

BOTH = pytest.mark.parametrize("dark", [False, True])


def channels(colour: str) -> tuple[float, float, float]:
    """Linear red, green and blue of `#rrggbb`, as WCAG 2.2 has them."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return r, g, b


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), channels(colour), strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colours(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from colours(inner, f"{key}.{name}")
    elif isinstance(value, str) and value.startswith("#"):
        yield key, value


@BOTH
def test_text_has_the_contrast_of_wcag_aa(dark: bool) -> None:
    found = dict(colours(theme(dark)))
    texts = [key for key in found if key.endswith((".labelColor", ".titleColor", ".title.color"))]
    assert len(texts) == 7
    for key in (*texts, ".style.word.color"):
        assert contrast(found[key], GROUND[dark]) >= 4.5, key


@BOTH
def test_marks_have_the_contrast_of_graphics(dark: bool) -> None:
    found = dict(colours(theme(dark)))
    bad = [found[f".style.{name}.color"] for name in ("bad", "limit", "plain")]
    assert min(contrast(colour, GROUND[dark]) for colour in (*PALETTE, *bad)) >= 3


# Viénot, Brettel, Mollon 1999, Color Research and Application 24(4), in linear RGB: what a
# protanope and a deuteranope see of it.
PROTANOPE = ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1))
DEUTERANOPE = ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1))
# From linear sRGB, of the white D65: IEC 61966-2-1.
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1, 1.089)


def mixed(matrix: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    return [max(sum(w * v for w, v in zip(row, values, strict=True)), 0.0) for row in matrix]


def lab(linear: Sequence[float]) -> tuple[float, float, float]:
    """CIE L*a*b*, of colours that are not nearly black."""
    pairs = zip(mixed(XYZ, linear), WHITE, strict=True)
    x, y, z = ((value / white) ** (1 / 3) for value, white in pairs)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("seen", [PROTANOPE, DEUTERANOPE])
def test_the_first_four_colours_differ_to_the_colour_blind(
    seen: Sequence[Sequence[float]],
) -> None:
    perceived = [lab(mixed(seen, channels(colour))) for colour in PALETTE[:4]]
    assert min(dist(one, other) for one, other in combinations(perceived, 2)) > 20


@BOTH
def test_a_specification_is_drawn_in_either_theme(dark: bool) -> None:
    picture = history("cosine", [("abc", "2026-11-24", 0.9)])
    assert picture is not None
    assert "#" not in str(spec(picture)).replace("schema", "")
    assert GROUND[dark] in svg(picture, dark=dark)


@settings(deadline=None, max_examples=10)
@given(text=HOSTILE)
@pytest.mark.slow
def test_hostile_names_stay_text(text: str) -> None:
    picture = history(text[:50], [(text, text, 0.5), (text, text, float("nan"))])
    check_lines(drawn(picture).texts)


def test_markup_is_text() -> None:
    name = "<script>alert(1)</script>"
    candidates = [{"name": name, "size": 1e6, "kl": 0.1, "passed": True, "settings": {name: 1}}]
    picture = recommend({"candidates": candidates})
    assert isinstance(picture, Picture)
    made = svg(picture)
    assert "<script" not in made
    assert picture.table.rows[0][0] == name


@pytest.mark.slow
def test_the_script_names_itself_and_its_licence() -> None:
    found = script()
    notice, _, code = found.partition("\n")
    assert notice.startswith("/* Vega 6")
    assert "BSD-3-Clause" in notice
    assert f"{len(code):,} bytes" in notice
    assert len(found) < 1_000_000
    assert "window.vegaEmbed" in code
    assert "</script" not in found.lower()


def test_without_the_extra_one_sentence_says_so() -> None:
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from pytest_ane.mlprogram.errors import ReportError\n"
        "try:\n    from pytest_ane.report.charts import picture\n"
        "except ReportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Charts need altair; run: pip install 'pytest-ane[report]'\n"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.19, 0.002), [0, 0.01, 0.02, 0.05, 0.1]),
        ((6.1, float("inf"), float("nan")), [0, 0.5, 1, 2, 5]),
        ((1e-6,), [0, 1e-7, 2e-7, 5e-7, 1e-6]),
        ((0.0,), [0]),
        ((), [0]),
    ],
)
def test_an_axis_of_square_roots_has_ticks_up_to_the_largest(
    values: Sequence[float], ticks: Sequence[float]
) -> None:
    assert root_axis(values)["axis"].to_dict()["values"] == pytest.approx(ticks)
