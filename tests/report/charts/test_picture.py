"""Colours, templates, and hostile names."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings

from pytest_ane.gates.verdict import Column, Table
from pytest_ane.report.charts.run import Picture, _template, history, records
from tests.hostile import HOSTILE, check_lines
from tests.report.charts.drawn import drawn

THEME = _template("theme.json")
PALETTE = THEME["range"]["category"]
GROUNDS = ("#ffffff", "#14171a")
"""Of a light and of a dark page."""


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


@pytest.mark.parametrize("ground", GROUNDS)
def test_marks_have_the_contrast_of_graphics(ground: str) -> None:
    bad = [THEME["style"][name]["color"] for name in ("bad", "limit", "edge")]
    assert min(contrast(colour, ground) for colour in (*PALETTE, *bad)) >= 3


def test_text_has_the_colour_of_the_text_around_it_and_values_are_not_filled_again() -> None:
    picture = history("cosine", [("abc", "2026-11-24", 0.9)])
    texts = drawn(picture).root.iter("{http://www.w3.org/2000/svg}text")
    assert {text.get("fill") for text in texts} == {"currentColor"}
    table = Table("t", tuple(map(Column, ("what", "speed", "kind"))), (("$rows", 1.0, "bound"),))
    assert "$rows" in drawn(Picture("$x", "speeds", "$y", table)).texts


def test_rows_are_records_without_what_is_not_known_and_with_words_for_what_is_not_finite() -> None:
    columns = tuple(map(Column, "abc"))
    table = Table("t", columns, (("x", float("nan"), 1), ("y", float("-inf"), None)))
    assert records(table) == [{"a": "x", "b": "NaN", "c": 1}, {"a": "y", "b": "infinite"}]


@settings(deadline=None, max_examples=10)
@given(text=HOSTILE)
@pytest.mark.slow
def test_hostile_names_stay_text(text: str) -> None:
    picture = history(text[:50], [(text, text, 0.5), (text, text, float("nan"))])
    check_lines(drawn(picture).texts)


def test_without_the_extra_one_sentence_says_so() -> None:
    code = (
        "import sys; sys.modules['vl_convert'] = None\n"
        "from pytest_ane.mlprogram.errors import ReportError\n"
        "from pytest_ane.report.charts.run import svg\n"
        "from pytest_ane.report.charts.run import history\n"
        "try:\n    svg(history('cosine', [('abc', '2026-11-24', 0.9)]))\n"
        "except ReportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ("Charts need vl-convert-python; run: pip install 'pytest-ane[report]'\n")
