"""Chains: all shards of a model wired in running order, from token ids to logits and to text."""

from __future__ import annotations

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.golden import Golden, record_golden

__all__ = ["Chain", "Golden", "record_golden"]
