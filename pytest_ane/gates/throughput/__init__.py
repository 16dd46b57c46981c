"""How fast is it, against the baseline of the same machine? Asked with `-m bench`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_ane.core.verdict import Figure, Verdict
from pytest_ane.gates.base import Gate, Subject
from pytest_ane.gates.throughput.baseline import Baseline, Missing
from pytest_ane.gates.throughput.judge import Throughput, figures, is_suspect, judge
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.manifest.policy import ThroughputPolicy

__all__ = ["THROUGHPUT", "Throughput", "Timing", "judge"]


@dataclass(frozen=True)
class Timing:
    """A benchmark that was timed once.

    Attributes:
        speed: what was timed.
        policy: floor and limit, which decide whether it is timed again.
        baseline: as `find` gives it; None where nobody looked.
        recording: whether this run is stored, and so becomes a baseline itself.
        compared: whether `--benchmark-compare` was given.
        confirm: times as many rounds once more; None where it cannot be.
    """

    speed: Speed
    policy: ThroughputPolicy
    baseline: Baseline | Missing | None = None
    recording: bool = False
    compared: bool = False
    confirm: Callable[[], tuple[float, ...]] | None = None


class ThroughputGate(Gate[Throughput]):
    """Loads, calls and decoding in fixed rounds, against a floor and the stored run."""

    name = "throughput"
    marker = "bench"
    measurement = Throughput
    recordable = False
    fixtures = ("ane_shard_benchmark", "ane_against_baseline", "ane_gate")

    def measure(self, context: Timing) -> Throughput:
        """The benchmark, timed once more where it is below the floor or beyond the limit."""
        timed = Throughput(context.speed, context.baseline, context.recording, context.compared)
        if context.confirm is None or not is_suspect(timed, context.policy):
            return timed
        confirmed = context.speed.model_copy(update={"confirmation": context.confirm()})
        return replace(timed, speed=confirmed)

    def judge(self, measurement: Throughput, policy: ThroughputPolicy, subject: Subject) -> Verdict:
        """Passed if the policy sets neither floor nor limit, or both hold."""
        return judge(measurement, policy, subject.qualified)

    def figures(self, measurement: Throughput) -> tuple[Figure, ...]:
        """What was timed."""
        return figures(measurement)


THROUGHPUT = ThroughputGate()
