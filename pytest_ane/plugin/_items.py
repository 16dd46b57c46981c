"""Tests that are gates: which gate asks, and about what. Standard library and pytest alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.plugin._options import GATE_MARKERS

if TYPE_CHECKING:
    from pytest_ane.gates.base import GateTest, Subject
    from pytest_ane.plugin._workspace import Workspace


def workspace_of(config: pytest.Config) -> Workspace:
    """The run's workspace, whose module takes seconds to import."""
    from pytest_ane.plugin import _workspace

    return _workspace.of(config)


def is_gate(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in GATE_MARKERS)


def gate_of(item: pytest.Function) -> str:
    """`placement` for `test_placement[smollm2:L01]`; `throughput` for every benchmark."""
    if item.get_closest_marker("bench"):
        return "throughput"
    return (item.originalname or item.name).removeprefix("test_")


def subject_of(item: pytest.Function) -> str:
    """The shard's qualified id, or the model's name, whatever else a gate is parametrized by."""
    asked = asked_of(item)
    return item.callspec.id if asked is None else asked.qualified


def test_of(item: pytest.Function) -> GateTest:
    from pytest_ane.gates.base import GateTest
    from pytest_ane.gates.registry import GATES

    gate, asked = gate_of(item), asked_of(item)
    if gate in GATES and asked is not None:
        return GATES[gate].test(asked)
    return GateTest(gate, subject_of(item))


def asked_of(item: pytest.Item) -> Subject | None:
    """The shard or model that a gate is parametrized by; it names the test's arithmetic alone."""
    params = params_of(item)
    return params.get("ane_shard") or params.get("ane_chain")


def params_of(item: pytest.Item) -> dict[str, Any]:
    """What a test is parametrized by; empty for one that is not."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def part_of(item: pytest.Function) -> str:
    """Which test of a gate that has several of a subject: `load`, `call[T1]`; else empty."""
    name = (item.originalname or item.name).removeprefix("test_")
    name = "" if name == gate_of(item) else name
    rest = item.callspec.id.replace(subject_of(item), "", 1).strip("-")
    return f"{name}[{rest}]" if rest else name
