"""Where will a shard run? Core ML's plan says on a Mac; elsewhere documented rules forecast it.

A forecast says `ineligible` or `eligible`; that an op is resident on the ANE only a plan can say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from pytest_ane.gates.base import Environment, Gate, Move, ShardContext
from pytest_ane.gates.placement.forecast import Forecast, Match, estimated_work, forecast
from pytest_ane.gates.placement.judge import figures, judge
from pytest_ane.gates.placement.measure import Placement, PredictedPlan, beside_prediction, measure
from pytest_ane.gates.placement.plans import Plan, PlannedOperation
from pytest_ane.gates.placement.plans.join import NEVER_FOLDED
from pytest_ane.gates.verdict import Figure, Verdict
from pytest_ane.make import Artifact
from pytest_ane.manifest import Shard
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.model import read_model

__all__ = [
    "PLACEMENT", "Forecast", "Match", "Placement", "Plan", "PredictedPlan", "estimated_work",
    "forecast", "judge", "measure",
]  # fmt: skip


class PlacementGate(Gate[Placement]):
    """Every compute op on the ANE, by Core ML's plan; or no rule that keeps one off it."""

    name = "placement"
    answers = "place"
    measurement = Plan
    static = True
    of_pipelines = False
    recorded_first = True
    derived = ("outcome",)
    requires = "Core ML's plan"

    def measure(self, context: ShardContext) -> Placement:
        """Core ML's plan where the backend runs on a device, else a forecast."""
        # Some rules read weights, which `context.program` leaves out.
        program = read_model(context.artifact.path, function=context.shard.function)
        artifact = context.artifact
        return measure(context.backend, artifact.path, program, size_bytes=artifact.size)

    def beside(self, recorded: Placement, context: ShardContext) -> Placement:
        """A recorded plan beside what is predicted, so that the two can be compared."""
        assert isinstance(recorded, Plan)
        program = read_model(context.artifact.path, weights=False, function=context.shard.function)
        return beside_prediction(recorded, program)

    def judge(self, measurement: Placement, policy: PlacementPolicy, subject: Shard) -> Verdict:
        """Passed if every compute op is on the ANE, or no rule keeps one off it.

        Of a package of the user's every one that people ask for, and nearly all of the work.
        """
        return judge(measurement, policy, subject.qualified, own=subject.artifact is not None)

    def figures(self, measurement: Placement) -> tuple[Figure, ...]:
        """Compute ops by device; a forecast's depend on a system, so it has none."""
        return figures(measurement) if isinstance(measurement, Plan) else ()

    def proves(self, verdict: Verdict) -> str:
        """A forecast is no proof."""
        return "" if verdict.basis == "plan" else "this gate judged a forecast"

    def lacks(
        self, measurement: Placement, subject: Shard, place: Environment, artifact: Artifact | None
    ) -> Iterator[str]:
        """A plan of Core ML's names every operation; counts and logs, which do not, prove less."""
        assert isinstance(measurement, Plan)
        if measurement.source != "coremltools" or measurement.tallies or measurement.messages:
            yield "holds counts or a log, not Core ML's plan alone"
        if not any(operation.name for _, operation in measurement.walk()):
            yield "holds a plan that names no operation"
        units = place.get("compute_units", "")
        if measurement.compute_units != units:
            planned = measurement.compute_units or "unknown compute units"
            yield f"holds a plan for {planned}, and was recorded with {units or 'unknown ones'}"
        if artifact is None:
            return
        if kinds := {op.op for _, op in measurement.walk() if op.folded and op.op in NEVER_FOLDED}:
            yield f"holds a plan that takes a {min(map(str, kinds))} for folded, which none can be"
        # It was joined with its program when it was recorded.
        held = Counter(operation.op or "" for _, operation in measurement.walk())
        program = read_model(artifact.path, weights=False, function=subject.function).program
        there = Counter(operation.op for operation in program.walk())
        for kind in (kind for kind in there | held if there[kind] != held[kind]):
            yield f"holds a plan of {held[kind]} {kind}, and the program has {there[kind]}"

    def moves(self, old: Placement, new: Placement) -> Iterator[Move]:
        """Operations with another preferred device, by function, blocks and name."""
        assert isinstance(old, Plan)
        assert isinstance(new, Plan)
        before, after = _by_place(old), _by_place(new)
        for key in dict.fromkeys((*before, *after)):
            pair = (before.get(key), after.get(key))
            then, now = (
                "absent" if op is None else "folded" if op.folded else op.preferred or "none"
                for op in pair
            )
            operation = pair[0] or pair[1]
            if then != now and operation is not None:
                yield Move(key[0], operation.op or "", operation.name, then, now)


_Place: TypeAlias = tuple[str, tuple[tuple[str, int], ...], str, int]


def _by_place(plan: Plan) -> dict[_Place, PlannedOperation]:
    """Operations by function, blocks, name (else type), and which of equal ones it is."""
    places: dict[_Place, PlannedOperation] = {}
    for function, op in plan.walk():
        key, count = (function, op.scope, op.name or op.op or ""), 0
        while (place := (*key, count)) in places:
            count += 1
        places[place] = op
    return places


PLACEMENT = PlacementGate()
