"""The placement measurement: Core ML's own plan where a device is at hand, else a forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from pytest_ane.backends import Backend, CoreMLBackend
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.placement import judge as forecasts
from pytest_ane.gates.placement import plans
from pytest_ane.gates.placement.device import plan_on_device
from pytest_ane.gates.placement.forecast import Forecast, forecast
from pytest_ane.gates.placement.plans import Plan
from pytest_ane.mil.records import MLModel

Placement: TypeAlias = Plan | Forecast
"""What is known of where a shard runs."""


def measure(backend: Backend, artifact: Path, program: MLModel, *, size_bytes: int) -> Placement:
    """Where an artifact's operations run, or what the rules say of that.

    Args:
        backend: decides which: one on a device is asked for its plan.
        artifact: the package.
        program: what it holds.
        size_bytes: its size on disk.

    Raises:
        PlanError: Core ML gives no plan.
    """
    if isinstance(backend, CoreMLBackend):
        return plan_on_device(backend, artifact, program)
    return forecast(program, size_bytes=size_bytes)


def judge(found: Placement, *, subject: str, os: str) -> Verdict:
    """The verdict on where a shard runs.

    Args:
        found: the measurement.
        subject: qualified shard id, such as `smollm2:L01`.
        os: the system the shard is for; decides the size rule of a forecast.

    Raises:
        ManifestError: `os` names no system.
    """
    if isinstance(found, Plan):
        return plans.judge(found, subject=subject)
    return forecasts.judge(found, subject=subject, os=os)
