"""Faults and benign rewritings as data, and what the gates say of each: `make battery`."""

from __future__ import annotations

from tests.battery import (
    attention,
    benign,
    blocks,
    host,
    interface,
    keys,
    mixtures,
    packages,
    weights,
)
from tests.battery.fault import unique

_MODULES = (attention, blocks, weights, mixtures, packages, host, interface, keys, benign)

FAULTS = {fault.name: fault for fault in unique([f for m in _MODULES for f in m.FAULTS])}
"""Every fault and every benign rewriting, by name."""
