"""Many shards and files in few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.gates.base import Move
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.records.compare import Comparison, Difference, FigureChange, Side, Skipped
from pytest_ane.tools._compare_words import data, fault, lines


def side(name: str, *, failed: bool = False) -> Side:
    findings = (Finding("failed", "it runs on the CPU"),) if failed else ()
    return Side(name, "Apple M4", Verdict("placement", "m:L00", findings=findings), 1)


def moved(subject: str, *names: str) -> Difference:
    moves = tuple(Move("main", "conv", name, "ANE", "CPU") for name in names)
    return Difference("placement", subject, side("macOS 26"), side("macOS 27", failed=True), moves)


def printed(comparison: Comparison) -> list[str]:
    return [" ".join(line.split()) for line in lines(comparison)]


def test_shards_that_lost_the_same_share_a_row_and_the_worst_comes_first() -> None:
    every = [moved(f"m:L{n:02d}", "a") for n in range(8, 12)]
    found = printed(Comparison("os", (*every, moved("m:L30", "c.0", "c.1"), moved("m", "a")), ()))
    assert found[0] == "macOS 26 -> macOS 27: 6 gates of m:L08-L11, m:L30, m compared"
    assert found[3] == "m:L08-L11, m:L30, m placement passed failed it runs on the CPU"
    assert found[4:] == [
        "7 operations that moved:",
        "subject each type moved names",
        "m:L30 2 conv ANE -> CPU c.0, c.1",
        "m:L08-L11, m 1 conv ANE -> CPU a",
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["m:L00", "m:L02", "m:L03"], "m:L00, m:L02-L03"),
        (["m:L9", "m:L10"], "m:L9-L10"),
        (["m:L00.p0", "m:L00.p1", "m:L01.p2"], "m:L00.p0-L00.p1, m:L01.p2"),
        (["m:a", "m:b"], "m:a, m:b"),
        (["m1", "m2"], "m1, m2"),
        ([f"m:L{n}" for n in range(0, 24, 2)],
         "m:L0, m:L2, m:L4, m:L6, m:L8, m:L10, m:L12, m:L14, m:L16, m:L18 and 2 more"),
    ],
)  # fmt: skip
def test_subjects(names: list[str], text: str) -> None:
    (first, *_) = lines(Comparison("os", tuple(moved(name) for name in names), ()))
    assert first.endswith(f" of {text} compared")


def test_figures_that_count_what_moved_are_not_repeated() -> None:
    change = FigureChange("ane_ops", "", "ops on the ANE", 3, 2, 0.0)
    both = moved("m:L00", "a")
    text = "\n".join(lines(Comparison("os", (Difference(**{**vars(both), "figures": (change,)}),),
                                      ())))  # fmt: skip
    assert "figures" not in text
    alone = Difference(**{**vars(both), "moves": (), "figures": (change,)})
    assert "ane_ops" in "\n".join(lines(Comparison("os", (alone,), ())))


def test_files_that_are_not_compared_are_counted_and_shown_by_kind() -> None:
    """Ten of a kind, so that none hides another kind."""
    skipped = [Skipped(Path(f"{n}.json"), "bytes") for n in range(12)]
    skipped += [Skipped(Path("v.json"), "device", "v.json was recorded on a virtual machine")]
    comparison = Comparison("os", (), tuple(skipped))
    found = list(lines(comparison))
    assert found[0] == "not compared: 13 files"
    assert found[1] == "  0.json: is of other bytes than the evidence of any other system"
    assert found[11:] == [
        "  ... and 2 more; --json has all",
        "  v.json was recorded on a virtual machine",
    ]
    assert len(data(comparison)["not_compared"]) == 13
    assert fault(comparison).startswith("Nothing was compared: no two systems")


def test_red() -> None:
    same = Difference("placement", "m:L00", side("macOS 26"), side("macOS 27"))
    assert fault(Comparison("chip", (same,), ())) == ""
    two = tuple(moved(f"m:L{n}") for n in range(2))
    assert fault(Comparison("chip", two, ())) == "2 gates pass on one chip and not on another."
