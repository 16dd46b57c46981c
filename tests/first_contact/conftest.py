"""Fixtures of other rooms."""

from __future__ import annotations

from tests.tools.conftest import as_json

__all__ = ["as_json"]
