"""The noise of a machine as a table, the noisiest benchmark first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from pytest_ane.gates.throughput.noise import Calibration, Noise
from pytest_ane.gates.throughput.words import percent, seconds

_ENOUGH = 10
"""Runs from which sigma is known to a quarter."""


def lines(calibration: Calibration) -> Iterator[str]:
    """A line a benchmark, then what is to be known of sigma."""
    noises = sorted(calibration.noises, key=lambda one: -one.sigma)
    names = [_name(one) for one in noises]
    width = max(map(len, names))
    yield ""
    yield ", ".join(filter(None, calibration.identity.values()))
    yield f"{'benchmark':<{width}}  {'median':>9}  {'sigma':>7}  {'2.8 sigma':>9}  runs"
    for name, one in zip(names, noises, strict=True):
        median = seconds(statistics.median(one.medians))
        share, limit = percent(one.sigma), percent(one.limit)
        yield f"{name:<{width}}  {median:>9}  {share:>7}  {limit:>9}  {one.runs:>4}"
    few = min(noises, key=lambda one: one.runs)
    if few.runs < _ENOUGH:
        yield f"sigma of {few.runs} runs is itself known to {percent(few.uncertainty)}; see --runs"


def _name(noise: Noise) -> str:
    what = f"T={noise.tokens}" if noise.what == "call" and noise.tokens else noise.what
    return f"{noise.subject} {what}"
