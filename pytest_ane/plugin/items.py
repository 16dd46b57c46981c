"""Tests that are gates: which gate asks, and about what. Standard library and pytest alone."""

from __future__ import annotations

import pytest

from pytest_ane.plugin.options import GATE_MARKERS


def is_gate(item: pytest.Item) -> bool:
    """Whether a test is marked as a gate or a benchmark."""
    return any(item.get_closest_marker(name) for name in GATE_MARKERS)


def gate_of(item: pytest.Function) -> str:
    """`placement` for `test_placement[smollm2:L01]`; `throughput` for every benchmark."""
    if item.get_closest_marker("bench"):
        return "throughput"
    return (item.originalname or item.name).removeprefix("test_")


def subject_of(item: pytest.Function) -> str:
    """The shard's qualified id, or the model's name, whatever else a gate is parametrized by."""
    params = item.callspec.params
    shard = getattr(params.get("ane_shard"), "qualified", "")
    return str(shard or params.get("ane_chain", item.callspec.id))


def part_of(item: pytest.Function) -> str:
    """Which test of a gate that has several of a subject: `load`, `call[T1]`; else empty."""
    name = (item.originalname or item.name).removeprefix("test_")
    name = "" if name == gate_of(item) else name
    rest = item.callspec.id.replace(subject_of(item), "", 1).strip("-")
    return f"{name}[{rest}]" if rest else name
