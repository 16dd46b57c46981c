"""Whether this is a run in CI."""

from __future__ import annotations

import os


def in_ci() -> bool:
    """Whether the variable CI is set, as CI services do, to anything but `0` and `false`."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
