"""All gates by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_ane.gates.base import Gate
from pytest_ane.gates.behaviour import BEHAVIOUR
from pytest_ane.gates.compression import COMPRESSION
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.hazards import HAZARDS
from pytest_ane.gates.placement import PLACEMENT
from pytest_ane.gates.throughput import THROUGHPUT

GATES: Mapping[str, Gate[Any]] = MappingProxyType(
    {gate.name: gate for gate in (PLACEMENT, COMPRESSION, FIDELITY, HAZARDS, BEHAVIOUR, THROUGHPUT)}
)
"""Every gate by name, in the order in which they are asked: the cheapest first."""


def recordable(scope: str) -> tuple[Gate[Any], ...]:
    """Gates of `shard` or `model` scope that recorded evidence may answer."""
    return tuple(gate for gate in GATES.values() if gate.recordable and gate.scope == scope)
