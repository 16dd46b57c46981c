"""Does the ANE's own arithmetic break a shard? Overflow, dropped products, tables, cliffs."""

from __future__ import annotations

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.base import Gate, ShardContext, Subject
from pytest_ane.gates.hazards.judge import figures, findings, judge, limits
from pytest_ane.gates.hazards.measure import Hazards, Peak, measure
from pytest_ane.gates.verdict import Figure, Limits, Verdict
from pytest_ane.manifest import Shard
from pytest_ane.manifest.policy import HazardsPolicy

__all__ = ["HAZARDS", "Hazards", "Peak", "findings", "judge", "measure"]


class HazardsGate(Gate[Hazards]):
    """Every probe in the ANE's arithmetic, each operation against the limits that are known of it.

    It is computed by the executor wherever it runs, so no device's evidence answers it.
    """

    name = "hazards"
    answers = "sound"
    measurement = Hazards
    recordable = False
    by_device = False

    def asks(self, subject: Subject) -> bool:
        """Of shards whose `arithmetic` names the ANE's."""
        return super().asks(subject) and "ane" in subject.arithmetic

    def measure(self, context: ShardContext) -> Hazards:
        """Run the artifact on every probe by the executor, whatever runs it in production."""
        backend = CpuBackend(arithmetic="ane")
        runner = backend.load(context.artifact.path, context.shard.function)
        provenance = backend.provenance() | {"artifact": context.artifact.digest}
        return measure(runner, context.cases(), provenance)

    def judge(self, measurement: Hazards, policy: HazardsPolicy, subject: Shard) -> Verdict:
        """Failed by what was met or is beyond the policy's limits; warned by what is near."""
        return judge(measurement, policy, subject.qualified)

    def limits(self, policy: HazardsPolicy, subject: Shard) -> Limits:
        """Of the greatest of each hazard."""
        return limits(policy)

    def figures(self, measurement: Hazards) -> tuple[Figure, ...]:
        """The greatest of each hazard."""
        return figures(measurement, HazardsPolicy())


HAZARDS = HazardsGate()
