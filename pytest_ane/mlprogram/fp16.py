"""Limits of fp16 (IEEE 754-2019, table 3.5, binary16)."""

from __future__ import annotations

MAX = 65_504.0
"""The largest finite number."""
MIN_NORMAL = 2.0**-14
"""The smallest normal number: below it values are equally spaced."""
SMALLEST = 2.0**-24
"""The smallest positive number, which is subnormal; also float32's unit roundoff."""
EPSILON = 2.0**-10
"""Distance from 1 to the next number."""
