"""Behaviour: does the whole stack still say the same? Asked when the whole chain is selected."""

from __future__ import annotations

import pytest

from pytest_ane.gates.behaviour import Behaviour, judge, measure
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence
from pytest_ane.project.stack import Stack

pytestmark = pytest.mark.gate


def test_behaviour(ane_chain: Stack, ane_evidence: Evidence, ane_gate: GateKeeper) -> None:
    """Golden prompts through all shards: logits position by position, and greedy text."""

    def measured() -> Behaviour:
        stack = ane_chain
        return measure(stack.chain, stack.golden, stack.states, stack.decode, stack.provenance)

    found = ane_evidence.of("behaviour", measured)
    ane_gate(judge(found, ane_chain.policy, ane_chain.model))
