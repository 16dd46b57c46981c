"""BERT: an encoder with post-norm blocks, and pooling into one embedding. MiniLM, BGE, E5."""

from __future__ import annotations

from pytest_ane.models.families._blocks import starts_whole
from pytest_ane.models.families.bert._model import BertModel, layout, open_model
from pytest_ane.models.families.bert.config import VERSION, wiring
from pytest_ane.models.families.decoder._model import spread

converted = ("bert",)
"""Values of GGUF's `general.architecture` that are this family's."""

__all__ = [
    "VERSION",
    "BertModel",
    "converted",
    "layout",
    "open_model",
    "spread",
    "starts_whole",
    "wiring",
]
