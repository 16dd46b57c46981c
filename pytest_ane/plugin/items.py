"""What a test item asks: which gate, of which shard or model."""

from __future__ import annotations

import pytest


def gate_of(item: pytest.Function) -> str:
    """`placement` for `test_placement[smollm2:L01]`; `throughput` for every benchmark."""
    if item.get_closest_marker("bench"):
        return "throughput"
    return (item.originalname or item.name).removeprefix("test_")


def subject_of(item: pytest.Function) -> str:
    """The shard's qualified id, or the model's name, whatever else a gate is parametrized by."""
    params = item.callspec.params
    if (shard := params.get("ane_shard")) is not None:
        return str(getattr(shard, "qualified", shard))
    return str(params.get("ane_chain", item.callspec.id))
