"""How fast is it, against the baseline of the same machine? Asked with `-m bench`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_ane.gates.base import Gate, Subject
from pytest_ane.gates.throughput.judge import Throughput, is_suspect, judge, limits, speed_figures
from pytest_ane.gates.verdict import Figure, Limits, Verdict
from pytest_ane.manifest.policy import ThroughputPolicy

__all__ = ["THROUGHPUT", "Throughput", "Timing", "judge"]


@dataclass(frozen=True)
class Timing:
    """A benchmark that was timed once, its policy, and what times as many rounds again, or None."""

    timed: Throughput
    policy: ThroughputPolicy
    confirm: Callable[[], tuple[float, ...]] | None


class ThroughputGate(Gate[Throughput]):
    """Loads, calls and decoding in fixed rounds, against a floor and the stored run."""

    name = "throughput"
    answers = "speed"
    marker = "bench"
    measurement = Throughput
    recordable = False
    derived = ("change", "confirmed_change", "control_change", "baseline", "baseline_seconds",
               "baseline_tok_s", "max_regression", "max_regression_from", "recorded")  # fmt: skip

    def measure(self, context: Timing) -> Throughput:
        """The benchmark, timed once more where it is below the floor or beyond the limit."""
        timed = context.timed
        if context.confirm is None or not is_suspect(timed, context.policy):
            return timed
        confirmed = timed.speed.model_copy(update={"confirmation": context.confirm()})
        return replace(timed, speed=confirmed)

    def judge(self, measurement: Throughput, policy: ThroughputPolicy, subject: Subject) -> Verdict:
        """Passed if the policy sets neither floor nor limit, or both hold."""
        return judge(measurement, policy, subject.qualified)

    def limits(self, policy: ThroughputPolicy, subject: Subject) -> Limits:
        """Of tokens a second: the floor."""
        return limits(policy)

    def figures(self, measurement: Throughput) -> tuple[Figure, ...]:
        """What was timed."""
        return tuple(speed_figures(measurement.speed, {}, is_below=False))


THROUGHPUT = ThroughputGate()
