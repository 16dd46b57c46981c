"""Behaviour: does the whole stack still say the same? Asked when the whole chain is selected."""

from __future__ import annotations

import pytest

from pytest_ane.gates.behaviour import BEHAVIOUR
from pytest_ane.plugin.outcome import VerdictRecorder
from pytest_ane.plugin.recording import MeasurementSource
from pytest_ane.project.stack import Stack

pytestmark = pytest.mark.gate


def test_behaviour(
    ane_chain: Stack, ane_evidence: MeasurementSource, ane_gate: VerdictRecorder
) -> None:
    """Golden prompts through all shards: logits position by position, and greedy text."""
    measurement = ane_evidence.of("behaviour")
    ane_gate(BEHAVIOUR.judge(measurement, ane_chain.policy, ane_chain.subject))
