"""What reading one file may take; docs/reference/programs.md says the same."""

from __future__ import annotations

MEMORY_FLOOR = 32 << 20
MEMORY_FACTOR = 400
"""Bytes of memory per byte of the file: an operation may be two bytes of it."""
SECONDS = 10
