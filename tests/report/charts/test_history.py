"""One figure over commits."""

from __future__ import annotations

from pytest_ane.records.history import Course, Point
from pytest_ane.report.charts.run import history, pictures_of
from pytest_ane.report.run import Run
from tests.report.charts.drawn import drawn

SERIES = [(f"abc{i:03d}", f"2026-11-{i + 1:02d}", 0.99 if i < 12 else 0.93) for i in range(20)]


def test_the_step_is_marked() -> None:
    picture = history("cosine of m:L11", SERIES, 12, limit=0.97, good="above")
    found = drawn(picture)
    assert "0.9900 to 0.9300" in found.texts
    assert len(found.marks("rule")) == 2
    assert len(found.marks("symbol")) == 20
    assert picture.description == (
        "cosine of m:L11: 20 measurements, 0.9300 at the last. It steps at abc012: "
        "0.9900 to 0.9300. The policy asks for at least 0.97."
    )
    assert picture.table.rows[0] == ("abc000", "2026-11-01", 0.99)


def test_without_a_step_nothing_is_marked() -> None:
    assert not drawn(history("cosine", SERIES)).marks("rule")


def test_a_commit_that_was_measured_twice_has_two_points() -> None:
    found = drawn(history("cosine", [SERIES[0], SERIES[0], SERIES[1]]))
    assert {"abc000", "abc000 (2)", "abc001"} <= {*found.texts}


def test_what_is_not_finite_is_above_the_frame() -> None:
    picture = history("cosine", [*SERIES[:2], ("bad", "", float("nan"))], 2)
    found = drawn(picture)
    assert min(y for _, y in found.at("symbol")) < 0
    assert "0.9900 to NaN" in found.texts
    assert "marked above the frame: bad." in picture.description


def test_nothing_was_measured() -> None:
    assert history("cosine", []) is None


def test_one_point() -> None:
    assert len(drawn(history("speed", [("a", "t", 9.5)], unit="tok/s")).marks("symbol")) == 1


def test_a_figure_of_two_backends_has_two_titles() -> None:
    points = (Point("a", "t", 1.0), Point("b", "t", 2.0))
    on_cpu, on_ane = (
        Course("throughput", "m", "", "tok_s", backend, points, None)
        for backend in ("cpu", "coreml")
    )
    titles = [picture.title for picture in pictures_of(Run("", (), courses=(on_cpu, on_ane)))]
    assert titles == ["m tok_s on cpu over commits", "m tok_s on coreml over commits"]
    (alone,) = pictures_of(Run("", (), courses=(on_cpu,)))
    assert alone.title == "m tok_s over commits"
