"""Where the executor answers, and where it leaves coremltools alone."""

from __future__ import annotations

import sys

import pytest

from pytest_ane.mac import predict
from pytest_ane.mac._native import Settings


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that the native module would have been replaced."""
    calls: list[str] = []
    monkeypatch.setattr(predict, "_arithmetic", "typed")
    monkeypatch.setattr(predict, "activate", calls.append)
    return calls


def test_macos_has_core_ml_of_its_own(hooked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not predict.install()
    assert hooked == []
    assert predict.pytest_report_header() == "coremltools: predictions by Core ML"
    assert predict.install(force=True)
    assert hooked == ["typed"]


def test_the_anes_arithmetic_is_the_executors_on_macos_too(
    hooked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert predict.install(arithmetic="ane")
    assert predict.install()
    assert hooked == ["ane", "ane"]
    assert str(Settings("ane")) == (
        "predictions by pytest-ane's CPU executor as simulated ANE (h16+) (not Core ML)"
    )
    assert [Settings("ane").on(units) for units in ("ALL", "CPU_ONLY")] == ["ane", "typed"]
    assert not predict.install(arithmetic="typed")
