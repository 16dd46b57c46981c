"""Placement: where will it run? Forecast from documented rules; only a device can prove it."""

from __future__ import annotations

import pytest

from pytest_ane.build import Artifact
from pytest_ane.manifest import Shard
from pytest_ane.mil.records import Model
from pytest_ane.placement import forecast, judge
from pytest_ane.plugin.keeper import GateKeeper

pytestmark = pytest.mark.gate


def test_placement(shard: Shard, artifact: Artifact, program: Model, gate: GateKeeper) -> None:
    """No operation of the shard breaks a rule that would keep it off the ANE."""
    found = forecast(program, size_bytes=artifact.size)
    gate(judge(found, subject=shard.qualified, os=shard.policy.placement.os))
