"""A clock that is wrong by some seconds, from the start of a process: on its `PYTHONPATH`."""

from __future__ import annotations

import os
import time

_genuine, _wrong_by = time.time, float(os.environ.get("CLOCK_OF_TEST", "0"))
time.time = lambda: _genuine() + _wrong_by
