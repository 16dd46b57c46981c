"""Where a figure stepped, and where it only varies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.records.memory import Memory
from pytest_ane.records.steps import change, change_points, turns
from tests.records.runs import line, write


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([0.99] * 5, []),
        ([0.99] * 5 + [0.5] * 5, [5]),
        ([0.99] * 9 + [0.5], [9]),
        ([1, 1, 2, 2, 2, 2, 1, 1, 1], [2, 6]),
        ([1, 1, math.nan, math.nan, 1, 1], [2, 4]),
        ([1, 1, math.inf, math.inf], [2]),
        ([1.0, 2.0], [1]),
        ([1.0], []),
        ([], []),
    ],
)
def test_every_change_of_a_figure_without_noise(values: list[float], points: list[int]) -> None:
    assert change_points(np.array(values, dtype=np.float64)) == points


@pytest.mark.parametrize("runs", [6, 10, 20, 40, 100])
@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_noise_is_no_step(runs: int, draw: str) -> None:
    """At most 1 of 100 series of normal noise, and 2 of uniform noise, have a false step."""
    rng = np.random.default_rng(runs)
    series = getattr(rng, draw)(size=(400, runs)) + 9.25
    false = sum(bool(change_points(values)) for values in series)
    assert false <= 400 * (0.01 if draw == "normal" else 0.02)


@pytest.mark.parametrize(("runs", "found"), [(20, 0.75), (40, 0.95), (100, 0.95)])
def test_a_step_of_four_sigma(runs: int, found: float) -> None:
    series = np.random.default_rng(runs).normal(size=(200, runs))
    series[:, runs // 2 :] += 4
    hits = [change_points(values) for values in series]
    assert sum(any(abs(p - runs // 2) <= 1 for p in points) for points in hits) >= 200 * found


def test_an_outlier_hides_no_step() -> None:
    values = np.random.default_rng(0).normal(10, 0.1, 40)
    values[20:] += 1
    values[5] = 500
    assert change_points(values) == [20]


def test_how_much_a_figure_changed() -> None:
    assert change("size_bytes", 100, 300) == 0.5
    assert change("ineligible_ops", 0, 3) == 1
    assert change("probes", 16, 16) == 0
    assert change("cosine.min", 0.999, 0.95) > change("cosine.min", 0.2, 0.3)
    assert change("snr.min", 40, 20) == pytest.approx((0.1 - 0.01) / 0.11)
    assert change("snr.min", -1e9, 1e9) == 1
    assert change("kl.mean", 0.1, math.nan) == 1
    assert change("kl.mean", math.nan, math.nan) == 0


def test_steps_are_told_by_subject_and_commit(tmp_path: Path) -> None:
    spoilt = {"files": {"L01/weight.bin": "b" * 64}, "numpy": "2.4.0"}
    write(
        tmp_path,
        *(line(i, {"cosine.min": 0.999, "probes": 4}) for i in range(4)),
        *(line(i, {"cosine.min": 0.4, "probes": 4, "max": 1.0}, **spoilt) for i in range(4, 8)),
        *(line(i, {"cosine.min": 0.99}, subject="mini:L02") for i in range(4, 8)),
        *(line(i, {"cosine.min": 0.98}, subject="mini:L02") for i in range(8, 9)),
    )
    worst, other = turns(Memory(tmp_path))
    assert (worst.subject, worst.run.commit, worst.before.commit) == (
        "mini:L01", f"{4:040x}", f"{3:040x}"
    )  # fmt: skip
    assert [(s.series.figure, s.before, s.after) for s in worst.steps] == [
        ("cosine.min", 0.999, 0.4)
    ]
    assert worst.changed == ("package", "versions")
    assert (other.subject, other.run.commit, other.changed) == ("mini:L02", f"{8:040x}", ())
