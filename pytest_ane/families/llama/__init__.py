"""The Llama architecture: RMSNorm, rotary attention with grouped queries, SwiGLU."""

from __future__ import annotations

from pytest_ane.families.llama.config import VERSION, chain, starts_whole
from pytest_ane.families.llama.layout import LlamaLayout, layout
from pytest_ane.families.llama.model import LlamaModel, open_model

__all__ = ["VERSION", "LlamaLayout", "LlamaModel", "chain", "layout", "open_model", "starts_whole"]
