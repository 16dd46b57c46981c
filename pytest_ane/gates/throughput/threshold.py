"""How much slower is too slow: what the policy says, or what this machine's noise does."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ane.gates.throughput.noise import COMMAND, Noise
from pytest_ane.gates.throughput.words import percent
from pytest_ane.manifest import ThroughputPolicy
from pytest_ane.manifest.policy import CALIBRATED

DEFAULT, DEFAULT_LOAD = 0.25, 1.0
"""Regression that `--benchmark-compare` takes where neither policy nor calibration says one.

A load mostly asks the system for memory, and how soon it gets some differs by half from run to run.
"""

BLIND = 0.5
"""Noise, or slowness of the machine itself, from which on a run of half the speed could pass."""


@dataclass(frozen=True)
class Threshold:
    """How much slower is too slow.

    Attributes:
        share: of tok/s, or of a load's seconds.
        origin: where it comes from, for people.
    """

    share: float
    origin: str


def threshold(
    policy: ThroughputPolicy, noise: Noise | None, default: float = DEFAULT
) -> Threshold | str:
    """The policy's number, else the calibrated noise, else a default; or why there is none."""
    asked = policy.max_regression
    if isinstance(asked, float):
        return Threshold(asked, "policy.throughput.max-regression")
    if noise is None:
        if asked == CALIBRATED:
            return (
                "policy.throughput.max-regression is calibrated, and this machine's noise is not "
                f"known; measure it with: {COMMAND}"
            )
        return Threshold(default, f"the default; {COMMAND} measures this machine's noise")
    if not noise.limit < BLIND:
        return (
            f"Unchanged runs differ by sigma = {percent(noise.sigma)} ({noise.runs} runs), so half "
            f"the speed could pass for noise; quieten the machine, and repeat: {COMMAND}"
        )
    return Threshold(noise.limit, f"2.8 sigma of {noise.runs} unchanged runs, {COMMAND}")
