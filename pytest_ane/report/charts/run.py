"""The pictures of a run: of its own verdicts, of the memory, and of what other commands printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_ane.records.history import Course
from pytest_ane.report.charts.history import history
from pytest_ane.report.charts.picture import Picture
from pytest_ane.report.charts.search import recommend
from pytest_ane.report.charts.speed import speculation, throughput
from pytest_ane.report.charts.stack import drift, kl
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Run, comparable


def pictures_of(run: Run) -> list[Picture]:
    """All pictures that the data are there for."""
    of = {name: [d for d in run.documents if d.get("command") == name] for name in _COMMANDS}
    made = [*_stacks(run)]
    made += [drift(document) for document in of["drift"]]
    made += [*throughput(run, next(iter(of["bound"]), None))]
    made += [recommend(document) for document in of["recommend"]]
    made.append(speculation(of["speculate"]))
    made += [_course(run, course) for course in run.courses]
    return [picture for picture in made if picture is not None]


_COMMANDS = ("drift", "bound", "recommend", "speculate")


def _stacks(run: Run) -> Iterator[Picture | None]:
    last = {row.subject: row for row in _behaviour(run.before)}
    for row in _behaviour(run):
        if row.data is not None:
            before = last.get(row.subject)
            yield drift(row.data, before.data if before and comparable(row, before) else None)
            yield kl(row.data)


def _behaviour(run: Run | None) -> Iterator[Row]:
    yield from (row for row in run.rows if row.gate == "behaviour") if run else ()


def _course(run: Run, course: Course) -> Picture | None:
    rows = (row for row in run.rows if row.data and (row.gate, row.subject, row.part) == (
        course.gate, course.subject, course.test))  # fmt: skip
    figures = (f for row in rows for f in (row.data or {}).get("figures", ()))
    now: dict[str, Any] = next((f for f in figures if f["name"] == course.figure), {})
    same = [each.backend for each in run.courses if _subject(each) == _subject(course)]
    on = f" on {course.backend}" if len(same) > 1 and course.backend else ""
    return history(
        f"{course.subject} {now.get('label') or course.figure}{on} over commits",
        course.points,
        course.step,
        unit=now.get("unit", ""),
        limit=now.get("limit"),
        good=now.get("good"),
    )


def _subject(course: Course) -> tuple[str, str, str, str]:
    return course.gate, course.subject, course.test, course.figure
