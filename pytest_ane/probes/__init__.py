"""Probes: input sequences to a shard, and what its reference makes of each."""

from __future__ import annotations

from pytest_ane.probes.cases import Case

__all__ = ["Case"]
