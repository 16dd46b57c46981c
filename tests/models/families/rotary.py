"""RoPE as most models have it."""

from __future__ import annotations

import numpy as np

from pytest_ane.models.families._layout import Rotary


def plain_rotary(head: int, theta: float) -> Rotary:
    """Of `head` channels, at base `theta`: theta^(-2i/d) (Su et al., arXiv 2104.09864)."""
    frequency = theta ** (-np.arange(0, head, 2, dtype=np.float64) / head)
    return Rotary(tuple(frequency.tolist()))
