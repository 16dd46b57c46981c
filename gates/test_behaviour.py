"""Behaviour: does the whole stack still say the same? Asked when the whole chain is selected."""

from __future__ import annotations

import pytest

from pytest_ane.gates.behaviour import Behaviour, judge, measure
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence
from pytest_ane.project.stack import Stack

pytestmark = pytest.mark.gate


def test_behaviour(chain: Stack, evidence: Evidence, gate: GateKeeper) -> None:
    """Golden prompts through all shards: logits position by position, and greedy text."""

    def measured() -> Behaviour:
        return measure(chain.chain, chain.golden, chain.states, chain.decode, chain.provenance)

    found = evidence.of("behaviour", measured)
    gate(judge(found, chain.policy, chain.model))
