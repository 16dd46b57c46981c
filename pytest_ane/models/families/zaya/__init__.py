"""ZAYA1 (Zyphra): compressed convolutional attention and mixtures of experts, in alternation."""

from __future__ import annotations

from pytest_ane.models.families._blocks import starts_whole
from pytest_ane.models.families.zaya.config import VERSION, spread, wiring
from pytest_ane.models.families.zaya.model import ZayaModel, layout, open_model

__all__ = [
    "VERSION",
    "ZayaModel",
    "layout",
    "open_model",
    "spread",
    "starts_whole",
    "wiring",
]
