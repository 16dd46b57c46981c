"""The Llama architecture: RMSNorm, rotary attention with grouped queries, SwiGLU."""

from __future__ import annotations

from pytest_ane.families.blocks import starts_whole
from pytest_ane.families.llama.config import VERSION, wiring
from pytest_ane.families.llama.model import LlamaModel, layout, open_model, spread

__all__ = [
    "VERSION",
    "LlamaModel",
    "layout",
    "open_model",
    "spread",
    "starts_whole",
    "wiring",
]
