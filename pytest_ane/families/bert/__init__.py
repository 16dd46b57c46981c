"""BERT: an encoder with post-norm blocks, and pooling into one embedding. MiniLM, BGE, E5."""

from __future__ import annotations

from pytest_ane.families.bert.config import VERSION, spread, starts_whole, wiring
from pytest_ane.families.bert.model import BertModel, layout, open_model

__all__ = [
    "VERSION",
    "BertModel",
    "layout",
    "open_model",
    "spread",
    "starts_whole",
    "wiring",
]
