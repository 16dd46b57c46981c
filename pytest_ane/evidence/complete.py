"""Whether a recorded measurement answers all that was asked: judges see only what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_ane.evidence.statement import Statement
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.fidelity import Comparison, Fidelity
from pytest_ane.gates.placement.plans import Plan
from pytest_ane.manifest import Model, Shard
from pytest_ane.mil import count_operations
from pytest_ane.probes.seeded import KINDS as SEEDED


def lack(statement: Statement, subject: Shard | Model, artifact: Path | None = None) -> str:
    """What a measurement leaves out of what was asked, such as `leaves out p`; or nothing.

    Args:
        statement: what was recorded.
        subject: the shard, or for behaviour the model, as the manifest has it.
        artifact: the shard's package: a plan has each of its operations, constants included.
    """
    match statement.measurement, subject:
        case Plan() as plan, Shard():
            found = _of_plan(plan, statement.environment, artifact)
        case Fidelity() as fidelity, Shard():
            found = _of_fidelity(fidelity, subject)
        case Behaviour() as behaviour, Model():
            found = _of_behaviour(behaviour, subject)
        case _:
            return ""
    return next(found, "")


def _of_plan(plan: Plan, environment: Mapping[str, str], artifact: Path | None) -> Iterator[str]:
    """A plan of Core ML's names every operation; counts and logs, which do not, prove less."""
    if plan.source != "coremltools" or plan.tallies or plan.messages:
        yield "holds counts or a log, not Core ML's plan alone"
    if not any(one.name for _, one in plan.walk()):
        yield "holds a plan that names no operation"
    if plan.compute_units != (units := environment.get("compute_units", "")):
        planned = plan.compute_units or "unknown compute units"
        yield f"holds a plan for {planned}, and was recorded with {units or 'unknown ones'}"
    if artifact is None:
        return
    # It was joined with its program when it was recorded.
    held = Counter(operation.op or "" for _, operation in plan.walk())
    there = count_operations(artifact)
    for kind in (kind for kind in there | held if there[kind] != held[kind]):
        yield f"holds a plan of {held[kind]} {kind}, and the program has {there[kind]}"


def _of_fidelity(fidelity: Fidelity, shard: Shard) -> Iterator[str]:
    """Every probe asked for, each position of it compared."""
    if shard.reference != "none" and not fidelity.compared:
        yield "compares with no reference"
    probes: dict[str, list[Comparison]] = {}
    for one in fidelity.comparisons:
        probes.setdefault(one.probe, []).append(one)
    for kind in shard.probes.kinds:
        count = sum(outputs[0].kind == kind for outputs in probes.values())
        # Captured states are of models with a family; what is no such model has none.
        if kind in SEEDED and (not count or count % shard.probes.count):
            yield f"has {count} {kind} probes, and {shard.probes.count} at each length were asked"
    if not fidelity.compared:
        return
    for probe, outputs in probes.items():
        # An output that the reference does not have has no positions at all.
        if not any(map(_whole, outputs)):
            yield f"leaves out positions of {probe}"


def _whole(one: Comparison) -> bool:
    """Whether no position is left out; of an output that is one row, there is one."""
    found = sorted((*one.positions, *one.both_zero, *one.one_zero))
    if found == [0]:
        return True
    return len(found) == one.length and found == list(range(found[0], found[0] + len(found)))


def _of_behaviour(behaviour: Behaviour, model: Model) -> Iterator[str]:
    """Every golden prompt, with its positions and its greedy tokens."""
    found = {prompt.name: prompt for prompt in behaviour.prompts}
    if lost := sorted({prompt.name for prompt in model.prompts} - found.keys()):
        yield f"leaves out {', '.join(lost)}"
        return
    for asked in model.prompts:
        prompt = found[asked.name]
        if len(prompt.expected) != asked.greedy:
            tokens = f"{len(prompt.expected)} of {asked.greedy} greedy tokens"
            yield f"has {tokens} of {asked.name}"
        least = len(asked.ids) if asked.ids is not None else 1
        if len(prompt.positions) < least:
            yield f"has {len(prompt.positions)} of {least} positions of {asked.name}"
