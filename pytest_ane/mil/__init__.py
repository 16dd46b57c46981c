"""ML Programs: packages and compiled models as one set of records; weights stay mapped on disk."""

from __future__ import annotations

from pytest_ane.mil.blob import byte_size, load
from pytest_ane.mil.open import count_operations, read_any, read_model

__all__ = ["byte_size", "count_operations", "load", "read_any", "read_model"]
