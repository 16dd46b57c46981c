"""Hostile texts in a verdict, through everything that is made of it."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from _pytest.junitxml import bin_xml_escape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where
from pytest_ane.plugin._reports import of_row
from pytest_ane.report.formats import FORMATS
from pytest_ane.report.github import ROOM
from pytest_ane.report.run import Row, Run
from pytest_ane.report.terminal import table
from pytest_ane.report.verdict import details, failure, properties, reasons, row, to_json
from tests.hostile import HOSTILE, check_lines


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    def hostile() -> str:
        return draw(HOSTILE)

    def finding(severity: str) -> Finding:
        noun = draw(st.sampled_from(["op", "weight", "probe", "output"]))
        kind = draw(st.sampled_from(["", "are slow"]))
        where = Where(**{noun: hostile()})
        return Finding(severity, hostile(), where, hostile(), kind)

    severities = draw(st.lists(st.sampled_from(["failed", "unproven", "warned", "note"])))
    figures = (
        Figure("x", 1.0, label="x", limit=2.0, note=hostile(), shown=True),
        Figure("y", hostile(), shown=True),
    )
    columns = (Column("name"), Column("x"), Column("text"))
    cells = Table(hostile(), columns, ((hostile(), 1.0, hostile()), (hostile(), 2.0, None)))
    return Verdict(
        "fidelity", "m:L01", figures, tuple(map(finding, severities)), (cells,),
        {"machine": hostile()}, draw(st.sampled_from(["", "forecast"])), hostile(),
    )  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(verdict=verdicts(), width=st.sampled_from([None, 20, 80]))
@pytest.mark.slow
def test_no_control_and_no_command_reaches_any_stream(verdict: Verdict, width: int | None) -> None:
    check_lines([row(verdict), *reasons(verdict)])
    check_lines(failure(verdict).split("\n"))
    check_lines(details(verdict, width))
    made = Row(
        "fidelity", verdict.subject, verdict.status, row(verdict),
        reasons=tuple(reasons(verdict)), data=to_json(verdict),
    )  # fmt: skip
    check_lines(line.text for line in table([made], width=width))
    for value in properties(verdict).values():
        check_lines(str(value).split("\n"))
        element = ElementTree.Element("property", value=bin_xml_escape(value))
        ElementTree.fromstring(ElementTree.tostring(element))
    line = of_row(made).to_line()
    assert line.isascii()
    assert json.loads(line)["verdict"]["summary"] == row(verdict)
    check_lines(_texts(json.loads(line)))
    markdown = FORMATS[".md"](Run("header", (made,)))
    assert len(markdown.encode()) <= ROOM
    assert markdown.replace("\n", "").isprintable()


def _texts(data: object) -> list[str]:
    if isinstance(data, dict):
        return [text for inner in data.values() for text in _texts(inner)]
    if isinstance(data, list):
        return [text for inner in data for text in _texts(inner)]
    return [data] if isinstance(data, str) else []
