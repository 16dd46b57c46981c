"""Which stored run a benchmark is compared with, and why not another."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.gates.throughput.baseline import (
    Baseline,
    Calibration,
    Missing,
    Noise,
    find,
    newest_of,
    write,
)
from pytest_ane.gates.throughput.stored import folder_of
from pytest_ane.mlprogram.errors import UnprovenError
from tests.gates.throughput.runs import HERE, THERE, speed, storage, store

NOW = speed(4.0)


def found(folder: Path, which: str | None = None) -> Baseline:
    baseline = find(storage(folder), NOW, which)
    assert isinstance(baseline, Baseline), baseline
    return baseline


def why(folder: Path, which: str | None = None) -> str:
    missing = find(storage(folder), NOW, which)
    assert isinstance(missing, Missing)
    return missing.why


def test_the_newest_run_that_has_the_benchmark(tmp_path: Path) -> None:
    store(tmp_path, 1, speed(1.0))
    store(tmp_path, 2, speed(2.0), speed(0.5, what="call", tokens=1))
    store(tmp_path, 3, speed(3.0, what="call"))
    baseline = found(tmp_path)
    assert (baseline.run, baseline.when, baseline.noise) == ("0002", "2026-11-20", None)
    assert baseline.speed == speed(2.0)


def test_the_newest_of_this_machine_or_the_named_one(tmp_path: Path) -> None:
    store(tmp_path, 1, speed(1.0))
    store(tmp_path, 2, speed(2.0, identity=THERE))
    store(tmp_path, 3, speed(3.0, tokens=20))
    store(tmp_path, 4, speed(3.0, prompt=(1, 2)))
    assert found(tmp_path).run == "0001"
    store(tmp_path, 5, speed(5.0))
    assert found(tmp_path, "0001").speed.median == 1
    assert found(tmp_path, "000").run == "0005"
    file = store(tmp_path, 6, speed(5.0), machine="elsewhere")
    assert found(tmp_path, str(file)).speed.median == 5
    with pytest.raises(UnprovenError, match=r"^--benchmark-compare=a/b/c: 'a/b/c' isn't"):
        found(tmp_path, "a/b/c")


def test_nothing_is_stored_or_not_the_benchmark(tmp_path: Path) -> None:
    nothing = f"No run is stored in {folder_of(storage(tmp_path))}"
    assert why(tmp_path) == f"{nothing} that has it."
    assert newest_of(storage(tmp_path), HERE, ["m"]) == Missing(f"{nothing}.")
    store(tmp_path, 1, speed(1.0, what="call"))
    assert why(tmp_path) == f"{nothing} that has it."
    store(tmp_path, 2, speed(1.0, tokens=20, prompt=(1,)))
    assert why(tmp_path) == (
        "The stored run 0002 is no baseline: it computed 20 tokens a round, this one 40, and it "
        "continued another prompt."
    )


def test_another_machines_run_is_refused(tmp_path: Path) -> None:
    store(tmp_path, 1, speed(1.0, identity=THERE | {"backend": "cpu"}))
    assert why(tmp_path) == (
        "The stored run 0001 is no baseline: it is of another machine or backend: chip 'Apple M1', "
        "here 'Apple M4 Max'; backend 'cpu', here 'coreml'."
    )
    assert why(tmp_path, "0001") == why(tmp_path)


def test_a_damaged_run_on_the_way_is_an_error(tmp_path: Path) -> None:
    damaged = store(tmp_path, 1, NOW)
    damaged.write_text("{")
    store(tmp_path, 2, NOW)
    assert found(tmp_path).run == "0002"
    store(tmp_path, 2, speed(1.0, what="call"))
    with pytest.raises(UnprovenError, match=r"0001_run\.json cannot be compared with"):
        found(tmp_path)


def test_noise_of_this_machine_comes_along(tmp_path: Path) -> None:
    store(tmp_path, 1, NOW)
    noise = Noise(what="decode", subject="smollm2", tokens=40, medians=(4.0, 4.1))
    write(storage(tmp_path), Calibration(identity=THERE, noises=(noise,)))
    assert found(tmp_path).noise is None
    write(storage(tmp_path), Calibration(identity=NOW.identity, noises=(noise,)))
    assert found(tmp_path).noise == noise


def test_the_newest_run_of_a_machine_that_has_a_benchmark(tmp_path: Path) -> None:
    """Of any clock."""
    place, clock = storage(tmp_path), {"timer": "time.time"}
    store(tmp_path, 1, speed(1.0, subject="smollm2:L01", identity=HERE | clock))
    store(tmp_path, 2, speed(1.0, subject="other:L01"))
    store(tmp_path, 3, speed(1.0, subject="smollm2:L01", identity=THERE))
    for subjects, which, found in (
        (["smollm2:L01"], None, "0001"),
        (["smollm2:L01", "other:L01"], None, "0002"),
        (["smollm2:L02"], None, "No stored run of this machine has any of these benchmarks."),
        (["smollm2:L01"], "0003", "The stored run 0003 is of another machine or backend: chip "
         "'Apple M1', here 'Apple M4 Max'."),
    ):  # fmt: skip
        run = newest_of(place, HERE, subjects, which)
        assert (run.why if isinstance(run, Missing) else run.number) == found
