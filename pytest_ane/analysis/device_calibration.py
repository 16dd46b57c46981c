"""What this machine's CPU streams and computes, measured in a few seconds."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ane.analysis.devices import THIS_MACHINE, Device

_BYTES = 1 << 28
"""256 MiB an array: beyond any cache."""
_ROWS = 1536
_ROUNDS = 5
_FLOAT, _HALF = 4, 2


def calibrate_device(say: Callable[[str], None] = lambda _: None) -> Device:
    """Measure bandwidth and peak rate with numpy, as it is configured to use threads.

    Bandwidth is the best of reading one array (a dot product with itself) and copying one to
    another, as STREAM counts it: bytes read plus bytes written. The rate is that of a product of
    square float32 matrices. The executor holds weights as fp16, so 2 bytes each.

    Args:
        say: is told what is being measured.
    """
    say("memory bandwidth")
    source = np.ones(_BYTES // _FLOAT, np.float32)
    target = np.empty_like(source)
    read = _BYTES / _best(lambda: source @ source)
    copied = 2 * _BYTES / _best(lambda: np.copyto(target, source))
    say("float32 matrix products")
    square = np.ones((_ROWS, _ROWS), np.float32)
    product = np.empty_like(square)
    rate = 2 * _ROWS**3 / _best(lambda: np.matmul(square, square, out=product))
    return Device(
        name=THIS_MACHINE,
        bandwidth=round(max(read, copied) / 1e9, 2),
        peak=round(rate / 1e12, 4),
        held=_HALF,
        sources=(
            f"measured with numpy {np.__version__} on {platform.machine()}: read {read / 1e9:.1f}, "
            f"copy {copied / 1e9:.1f} GB/s, float32 product of {_ROWS} rows",
        ),
    )


def _best(call: Callable[[], Any]) -> float:
    """Seconds of the quickest of some rounds, after one that warms up."""
    call()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
