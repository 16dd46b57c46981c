"""This machine, measured on little memory."""

from __future__ import annotations

import pytest

from pytest_ane.analysis import device_calibration
from pytest_ane.analysis.device_calibration import calibrate_device


def test_rates_are_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_calibration, "_BYTES", 1 << 20)
    monkeypatch.setattr(device_calibration, "_ROWS", 64)
    said: list[str] = []
    device = calibrate_device(said.append)
    assert said == ["memory bandwidth", "float32 matrix products"]
    assert (device.name, device.held, device.lanes) == ("this machine", 2, 1)
    # No machine copies less than 10 MB/s or multiplies beyond a petaflop.
    assert device.bandwidth > 0.01
    assert 0 < device.peak < 1000
    assert "numpy" in device.sources[0]


def test_the_best_of_reading_and_copying_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 0.5, 2.0])
    monkeypatch.setattr(device_calibration, "_BYTES", 100_000_000)
    monkeypatch.setattr(device_calibration, "_ROWS", 2000)
    monkeypatch.setattr(device_calibration, "_best", lambda _: next(seconds))
    device = calibrate_device()
    assert device.bandwidth == 0.4
    assert device.peak == round(2 * 2000**3 / 2 / 1e12, 4)


def test_the_first_round_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(device_calibration.time, "perf_counter", lambda: float(next(clock)))
    calls: list[int] = []
    assert device_calibration._best(lambda: calls.append(1)) == 1
    assert len(calls) == 1 + device_calibration._ROUNDS
