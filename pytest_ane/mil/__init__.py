"""ML Programs: packages read from disk into one set of records; weights stay mapped on disk."""

from __future__ import annotations

from pytest_ane.mil.blob import byte_size, load
from pytest_ane.mil.package import read_model, read_package

__all__ = ["byte_size", "load", "read_model", "read_package"]
