"""The report of real runs in a real browser, as people use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from pytest_ane.gates.verdict import Figure, Verdict
from pytest_ane.records.history import Earlier
from pytest_ane.report.html._page import page
from pytest_ane.report.html.subjects import Subject, reds, subjects
from pytest_ane.report.table import amount, limit_of
from pytest_ane.tools.blame import CAUSE
from tests.report.html.conftest import Report
from tests.report.html.test_page import run_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

_READY = 5.0
"""Seconds; benchmarks/report_page.py tells how much sooner it is."""
_MOST_BYTES = 5_000_000


def at(tab: Page, report: Report, of: str | None = None) -> None:
    """Open the report, or a subject's details in it."""
    tab.goto(report.html.as_uri() + ("" if of is None else f"#of={quote(of, safe='')}"))
    tab.locator(":root[data-ready]").wait_for(state="attached")
    if of is not None:
        tab.locator("#detail h2").wait_for()


def names(tab: Page) -> list[str]:
    """Subjects of the rows that are shown, from the top."""
    rows = tab.locator("#shards tbody tr:not([hidden])")
    found: list[str] = rows.evaluate_all("rows => rows.map(row => row.dataset.name)")
    return found


def text(locator: Locator) -> str:
    return words(locator.text_content() or "")


def words(text: str) -> str:
    """Without backticks, between which the page has code."""
    return " ".join(text.replace("`", "").split())


def few(report: Report) -> list[Subject]:
    """The worst, and one of each gate and status besides."""
    picked: dict[Any, Subject] = {}
    for subject in subjects(report.run):
        picked.setdefault(tuple(one.row.label for one in subject.judged), subject)
    return list(picked.values())[:6]


def test_it_opens_from_disk(tab: Page, report: Report) -> None:
    at(tab, report)
    found = subjects(report.run)
    assert names(tab) == [subject.name for subject in found]
    red = sum(row.red for row in report.run.rows if row.gate)
    broken = sum(not row.gate for row in report.run.rows)
    headline = text(tab.locator("h1"))
    assert headline.startswith(f"{red} of " if red else "All ")
    assert (f"{broken} tests broke down" in headline) == (broken > 1)
    assert tab.locator("#red > ol > li").count() == min(50, len(reds(found)))
    assert int(tab.locator(":root").get_attribute("data-ready") or "") < 1000 * _READY
    assert report.html.stat().st_size <= _MOST_BYTES


def test_the_filter_narrows_the_rows_and_says_so(tab: Page, report: Report) -> None:
    at(tab, report)
    every = names(tab)
    part = every[-1].rpartition(":")[2].lower()
    tab.get_by_label("Filter by name").fill(part)
    kept = [name for name in every if part in name.lower()]
    assert names(tab) == kept
    assert text(tab.locator("#shown")) == f"{len(kept)} of {len(every)}"
    assert tab.locator("#none").is_hidden()
    tab.get_by_label("Filter by name").fill("no shard has this name")
    assert names(tab) == []
    assert "No shard" in text(tab.locator("#none:visible"))
    tab.locator("#none button").click()
    assert names(tab) == every


@pytest.mark.parametrize("status", ["red", "warned", "unproven", "passed"])
def test_only_what_has_a_status_is_shown(tab: Page, report: Report, status: str) -> None:
    at(tab, report)
    tab.get_by_role("combobox", name="Show").select_option(status)
    found = subjects(report.run)
    assert names(tab) == [
        s.name
        for s in found
        if (s.red if status == "red" else any(one.row.label == status for one in s.judged))
    ]


def test_every_column_sorts_both_ways(tab: Page, report: Report) -> None:
    at(tab, report)
    worst = names(tab)
    heads = tab.locator("#shards thead th")
    for i in range(heads.count()):
        heads.nth(i).get_by_role("button").click()
        ways = heads.evaluate_all("all => all.map(one => one.ariaSort)")
        assert [way for way in ways if way != "none"] == [ways[i]]
        first, once = ways[i], names(tab)
        heads.nth(i).get_by_role("button").click()
        second = heads.nth(i).get_attribute("aria-sort")
        assert {first, second} == {"ascending", "descending"}
        keys = _keys(tab, i)
        assert sorted(once) == sorted(names(tab)) == sorted(worst)
        known = [key for key in keys if key is not None]
        assert known == sorted(known, reverse=second == "descending")
    assert names(tab) in (worst, worst[::-1])


def _keys(tab: Page, column: int) -> list[float | None]:
    """Values by which a gate's column is sorted, from the top; None where it was not asked."""
    cells = tab.locator(f"#shards tbody tr > :nth-child({column + 1})")
    texts = cells.evaluate_all("cells => cells.map(cell => cell.dataset.value ?? '')")
    return [float(text) if text else None for text in texts]


def test_a_click_opens_the_details_and_focus_goes_there_and_back(tab: Page, report: Report) -> None:
    at(tab, report)
    link = tab.locator("#shards tbody a").first
    name = link.text_content() or ""
    link.click()
    head = tab.locator("#detail h2")
    head.wait_for()
    assert name in text(head)
    assert head.evaluate("head => head === document.activeElement")
    tab.keyboard.press("Escape")
    assert tab.locator("#detail").is_hidden()
    assert link.evaluate("link => link === document.activeElement")
    link.click()
    head.wait_for()
    tab.locator("#detail").get_by_role("button", name="Close").click()
    assert tab.locator("#detail").is_hidden()


def test_the_keyboard_alone_reaches_everything(tab: Page, report: Report) -> None:
    at(tab, report)
    tab.keyboard.press("Tab")
    assert text(tab.locator(":focus")) == "Skip to the shards"
    tab.keyboard.press("Enter")
    tab.locator("#filter").focus()
    for _ in range(100):
        tab.keyboard.press("Tab")
        if tab.locator("#shards tbody a:focus").count():
            break
    name = text(tab.locator(":focus"))
    tab.keyboard.press("Enter")
    tab.locator("#detail h2:focus").wait_for()
    assert words(name) in text(tab.locator("#detail h2"))
    tab.keyboard.press("Escape")
    assert text(tab.locator("#shards a:focus")) == name


def test_details_hold_every_finding_figure_and_command(tab: Page, report: Report) -> None:
    for subject in few(report):
        at(tab, report, subject.name)
        assert words(subject.name) in text(tab.locator("#detail h2"))
        shown = text(tab.locator("#detail"))
        for one in subject.judged:
            assert words(one.row.summary) in shown
            if one.verdict is None:
                continue
            assert report.run.command(one.row.subject, marker=one.row.gate) in shown
            for finding in one.verdict.findings:
                assert words(finding.reason) in shown
                assert words(finding.remedy) in shown
            for figure in one.verdict.figures:
                assert words(amount(figure.value, figure.unit)) in shown
                if figure.limit is not None:
                    sign = "≥" if figure.good == "above" else "≤"
                    assert f"{sign} {limit_of(figure.limit, figure.unit)}" in shown


def _colours(tab: Page) -> tuple[str, ...]:
    script = "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
    return tuple(tab.locator("body").evaluate(script))


def test_dark_and_light(tab: Page, report: Report) -> None:
    at(tab, report)
    light = _colours(tab)
    tab.emulate_media(color_scheme="dark")
    dark = _colours(tab)
    assert not set(light) & set(dark)
    tab.emulate_media(color_scheme="light")
    assert _colours(tab) == light
    tab.locator("#theme").click()
    assert _colours(tab) == dark
    tab.reload()
    assert _colours(tab) == dark
    tab.locator("#theme").click()
    assert _colours(tab) == light


@contextmanager
def printed(tab: Page) -> Iterator[None]:
    """As on A4, whose text is 190 mm wide."""
    tab.set_viewport_size({"width": 718, "height": 1000})
    tab.emulate_media(media="print")
    yield
    tab.emulate_media(media="screen")


_CUT = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const style = getComputedStyle(one);
  const hides = [style.overflowX, style.overflowY].some((way) => way !== "visible");
  const inner = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
  return hides && inner && one.checkVisibility() && !one.closest(".sr, .skip, svg");
}).map((one) => one.outerHTML.slice(0, 200))"""
"""Elements that hide a part of their content."""
_LINES = """(one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return range.getClientRects().length;
}"""
"""On how many lines the text of an element is."""


def test_the_print_view_has_no_controls_and_cuts_nothing_off(tab: Page, report: Report) -> None:
    at(tab, report, subjects(report.run)[0].name)
    with printed(tab):
        for control in ("button:not(thead button)", "nav", "input", "select"):
            assert tab.locator(f"{control}:visible").count() == 0, control
        assert tab.locator("#shards tbody tr:visible").count() == len(subjects(report.run))
        assert tab.locator("#detail h2").is_visible()
        assert tab.evaluate(_CUT) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= 718
    assert tab.pdf().startswith(b"%PDF")


@pytest.mark.heavy
def test_figures_of_long_units_and_texts_fit_a_printed_page(tab: Page, tmp_path: Path) -> None:
    """Lines break between words, and only those of a text within a word."""
    figures = (
        Figure("predicted", 69, "compute ops on the ANE in 1 segment", "predicted at T = 1", of=69),
        Figure("weight", "w" * 300),
        Figure("text", " one day, she found a magical box" * 9),
    )
    then = Earlier("", "", "", {("placement", "m:L01", ""): {"predicted": 68.0}})
    run = replace(run_of(Verdict("placement", "m:L01", figures)), earlier=then)
    report = Report("wide", tmp_path / "report.html", run)
    report.html.write_text(page(run), "utf-8")
    at(tab, report, "m:L01")
    with printed(tab):
        assert tab.evaluate("document.documentElement.scrollWidth") <= 718
        assert tab.get_by_role("columnheader", name="limit").evaluate(_LINES) == 1


def test_a_narrow_window_scrolls_only_tables(tab: Page, report: Report) -> None:
    at(tab, report)
    tab.set_viewport_size({"width": 320, "height": 700})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    for subject in few(report)[:2]:
        at(tab, report, subject.name)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab: Page, report: Report, scheme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.emulate_media(color_scheme=scheme)
    at(tab, report, subjects(report.run)[0].name)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    result = Axe().run(tab).response
    serious = [v for v in result["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in serious] == []


def test_a_new_user_sees_the_worst_shard_its_cause_and_the_remedy(
    tab: Page, report: Report
) -> None:
    """Above the fold."""
    at(tab, report)
    found = subjects(report.run)
    items = tab.locator("#red > ol > li")
    if not found or not found[0].red:
        assert items.count() == 0
        return
    first = items.first
    group = reds(found)[0]
    assert text(first.locator("h3")).startswith(found[0].name)
    assert first.locator("h3 a").count() == min(8, len(group))
    _, red = group[0]
    says = [first.locator("h3"), first.locator("p").first]
    if red.verdict:
        causes = [f for f in red.verdict.findings if f.kind == CAUSE]
        wrong = [f for f in red.verdict.findings if f.severity in ("failed", "unproven")]
        finding = [*causes, *wrong][0]
        shown = first.locator("li").first
        assert words(finding.reason) in text(shown)
        assert words(finding.remedy) in text(shown)
        assert finding.where.name in text(shown) or finding.kind != CAUSE
        says.append(shown)
    for part in says:
        box = part.bounding_box()
        assert box["y"] < 1000


def test_names_stay_text(tab: Page, report: Report) -> None:
    """Every subject opens by its name, and brings no element that runs or loads anything."""
    at(tab, report)
    scripts = tab.locator("script").count()
    for name in names(tab)[:12]:
        at(tab, report, name)
        assert words(name) in text(tab.locator("#detail h2"))
        assert (
            tab.locator("#detail").locator("script, img, iframe, a:not(.share), [onerror]").count()
            == 0
        )
        assert tab.locator("script").count() == scripts


def test_a_link_leads_to_what_one_gate_says(tab: Page, report: Report) -> None:
    at(tab, report)
    subject = subjects(report.run)[0]
    at(tab, report, subject.name)
    last = tab.locator("#detail section.gate").last
    share = last.locator("a.share")
    address, gate = share.get_attribute("href"), last.get_attribute("data-gate")
    assert address is not None
    tab.goto(f"{report.html.as_uri()}{address}")
    tab.reload()
    tab.locator("#detail h2:focus").wait_for()
    assert text(tab.locator("#detail h2")).startswith(words(subject.name))
    said = tab.locator(f'#detail section[data-gate="{gate}"]').first
    assert said.evaluate("one => one.getBoundingClientRect().top < innerHeight")


def test_the_first_screen_answers(tab: Page, report: Report) -> None:
    at(tab, report)
    box = tab.locator(".answers").bounding_box()
    assert box is not None
    assert box["y"] < 250
    assert tab.locator(".answers dt").all_text_contents()[:4] == [
        "Is it right?", "Does it run on the ANE?", "How big?", "How fast?",
    ]  # fmt: skip
