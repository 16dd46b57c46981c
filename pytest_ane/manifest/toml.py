"""The TOML parser of the standard library, or on Python 3.10 the package it came from."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads  # type: ignore[import-not-found,unused-ignore]

__all__ = ["TOMLDecodeError", "loads"]
