"""Shards that take longer: which ones, and how much."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.testing.plugin import Slow, slowed


class Instant:
    inputs = ("x",)

    def predict(self, inputs: Any, state: Any = None) -> Any:
        return {"y": inputs, "state": state}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(CpuBackend, "load", lambda self, artifact: Instant())
    return CpuBackend().load


def test_a_call_takes_so_much_longer_and_says_the_same() -> None:
    slow = Slow(Instant(), 0.02)
    start = time.perf_counter()
    assert slow.predict({"x": 1}, 2) == {"y": {"x": 1}, "state": 2}
    assert time.perf_counter() - start >= 0.02
    assert slow.inputs == ("x",)


@pytest.mark.usefixtures("load")
def test_only_what_is_named() -> None:
    with slowed({"L0*": 0.001, "L01": 0.002}):
        kinds = {n: CpuBackend().load(Path(f"{n}.mlpackage")) for n in ("L00", "L01", "head.0")}
        assert isinstance(kinds["L00"], Slow)
        assert vars(kinds["L01"])["_seconds"] == pytest.approx(0.003)
        assert isinstance(kinds["head.0"], Instant)
    assert isinstance(CpuBackend().load(Path("L00.mlpackage")), Instant)


@pytest.mark.parametrize("given", ["L01", "L01:", ":5", "L01:nan", "L01:-1", "L01:x", "L01:1e9"])
def test_what_cannot_be_understood(given: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-p", "pytest_ane.testing.plugin", f"--ane-slow={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*give a shard's id or a pattern, and milliseconds, such as *"])
