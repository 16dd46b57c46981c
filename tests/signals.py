"""Ctrl-C for processes that tests start."""

from __future__ import annotations

import signal


def heed_ctrl_c() -> None:
    """For `preexec_fn`: background jobs of shells ignore Ctrl-C, and children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
