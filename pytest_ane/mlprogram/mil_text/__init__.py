"""The text of MIL programs, `model.mil`: its grammar, a parser and a writer."""

from __future__ import annotations

from pytest_ane.mlprogram.mil_text.parse import parse
from pytest_ane.mlprogram.mil_text.write import write

__all__ = ["parse", "write"]
