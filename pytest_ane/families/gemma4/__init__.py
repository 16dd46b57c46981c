"""Gemma 4 with experts (26B-A4B): sliding and global attention, experts in eight packs a layer."""

from __future__ import annotations

from pytest_ane.families.gemma4.config import VERSION, spread
from pytest_ane.families.gemma4.model import Gemma4Model, layout, open_model
from pytest_ane.families.gemma4.shards import starts_whole, wiring

__all__ = [
    "VERSION",
    "Gemma4Model",
    "layout",
    "open_model",
    "spread",
    "starts_whole",
    "wiring",
]
