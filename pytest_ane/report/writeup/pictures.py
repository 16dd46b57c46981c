"""The pictures of a write-up, as far as its run and other commands' results hold any."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.report.charts.picture import Picture
from pytest_ane.report.charts.search import recommend
from pytest_ane.report.charts.speed import throughput
from pytest_ane.report.charts.stack import drift, kl
from pytest_ane.report.writeup.answer import Answer, kind_of


def pictures(answer: Answer) -> dict[str, Picture]:
    """Pictures by a short name, such as `drift` or `speed-2`."""
    made: dict[str, Picture] = {}
    for kind, picture in _pictures(answer):
        if picture is not None:
            number = sum(name.partition("-")[0] == kind for name in made) + 1
            made[kind if number == 1 else f"{kind}-{number}"] = picture
    return made


def _pictures(answer: Answer) -> Iterator[tuple[str, Picture | None]]:
    last = answer.last[1].rows if answer.last else ()
    before = {(row.gate, row.subject): row.data for row in last}
    for row in answer.run.rows:
        if row.gate == "behaviour" and row.data is not None:
            yield "drift", drift(row.data, before.get((row.gate, row.subject)))
            yield "kl", kl(row.data)
    yield from (("speed", picture) for picture in throughput(answer.run))
    for result in answer.more:
        if kind_of(result) == "recommend":
            yield "recommend", recommend(result)
        else:
            yield from (("bound", picture) for picture in throughput(None, result))
