"""Fixtures of other rooms."""

from __future__ import annotations

from tests.cli.conftest import as_json

__all__ = ["as_json"]
