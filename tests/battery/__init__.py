"""Faults and benign rewritings as data, and what the gates say of each: `make battery`."""

from __future__ import annotations

from tests.battery import benign, blocks, host, interface, mixtures, packages
from tests.battery.fault import unique

FAULTS = {
    fault.name: fault
    for fault in unique(
        [f for m in (blocks, mixtures, packages, host, interface, benign) for f in m.FAULTS]
    )
}
"""Every fault and every benign rewriting, by name."""
