"""Is each shard right? Its outputs against its reference's, on seeded and on real inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ane.gates.arithmetics import simulator
from pytest_ane.gates.base import Environment, Gate, ShardContext
from pytest_ane.gates.fidelity._interface import against_package, default_apart, differences
from pytest_ane.gates.fidelity._judge import figures, judge, limits
from pytest_ane.gates.fidelity._measure import coverage, measure
from pytest_ane.gates.fidelity._records import Comparison, Covered, Fidelity
from pytest_ane.gates.verdict import Figure, Limits, Verdict
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Shard
from pytest_ane.manifest.inputs import questions
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.digests import content_digest, key_digest, tree_files
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.model import counterpart, entry_points, only_program, read_any, read_model
from pytest_ane.mlprogram.records import Pipeline
from pytest_ane.probes.cases import Case
from pytest_ane.probes.domains import SAMPLER, domains
from pytest_ane.probes.overflow import first_overflow
from pytest_ane.probes.package import unmixed
from pytest_ane.probes.scales import SWEEP, find_edge
from pytest_ane.probes.seeded import GENERATOR, MASSIVE
from pytest_ane.probes.seeded import KINDS as SEEDED

__all__ = ["FIDELITY", "Comparison", "Fidelity", "judge", "measure"]
_LEFT_OUT = "no shard of the manifest is this function, for 'function' chooses another"


class FidelityGate(Gate[Fidelity]):
    """Every probe through the artifact, each output position by position against the reference."""

    name = "fidelity"
    answers = "right"
    measurement = Fidelity
    by_arithmetic = True

    def question(self, subject: Shard, model: Model, source: Callable[[], str]) -> dict[str, Any]:
        """Probes, inputs, the reference and the largest T; golden tensors hold their own probes."""
        reference = subject.reference
        asked: dict[str, Any] = {"reference": reference, "max_tokens": subject.max_tokens}
        if subject.ports:
            asked["ports"] = {name: p.model_dump(mode="json") for name, p in subject.ports.items()}
        if subject.uncompressed is not None:
            asked["uncompressed"] = key_digest(tree_files(subject.uncompressed))
        if subject.golden is not None:
            return asked | {"reference": {"golden": content_digest(subject.golden)}}
        probes = subject.probes.model_dump(mode="json")
        if not subject.probes.lengths:
            del probes["lengths"]
        asked["probes"] = probes | {"generator": GENERATOR}
        if subject.inputs or reference != "float32":
            asked["inputs"] = [SAMPLER, questions(subject.inputs), SWEEP]
        if isinstance(reference, Path):
            asked["reference"] = key_digest(tree_files(reference))
        elif reference == "float32":
            asked["source"] = source()
        if subject.probes.of_prompts:
            asked["prompts"] = [prompt.question for prompt in model.prompts]
        return asked

    def measure(self, context: ShardContext) -> Fidelity:
        """Run every probe on the artifact and compare; without a reference only run it."""
        program, ports, cases = context.program, context.ports(), context.cases()
        shard, reference = context.shard, context.shard.reference
        package = context.artifact.path, shard.function
        simulates = shard.arithmetic[0] == "ane" and not context.backend.on_device
        ane = simulator(context.backend) if simulates else None
        provenance = (ane or context.backend).provenance() | {"artifact": context.artifact.digest}
        measurement = measure(
            context.backend.load(*package), cases, compared=reference != "none",
            provenance=provenance, budget=context.budget(),
            simulated=ane.load(*package) if ane else None,
            rules=lambda: ane.rule_shares if ane else RuleShares(),
            program=program if shard.golden is None and reference != "float32" else None,
        )  # fmt: skip
        interface = notes = known = None
        named = reference if isinstance(reference, Path) else None
        declares = named if shard.golden is None else shard.uncompressed
        if declares is not None:
            function = counterpart(declares, shard.function)
            theirs = read_any(declares, weights=False, function=function)
            interface, notes = against_package(program, theirs)
            interface = (*interface, *default_apart(package[0], declares))
        elif ports is not None:
            interface = differences(only_program(program), ports, shard.max_tokens)
        if shard.golden is not None and ports is None:
            known = domains(program.inputs, shard.inputs, package[0], function=shard.function)
        covered = coverage(program, cases, golden=shard.golden is not None)
        return replace(
            measurement, coverage=(*covered, *_lost(context)), interface=interface, adapted=notes,
            edge=find_edge(*package, cases, declares, known),
            overflow=_overflow(measurement, context, cases),
        )  # fmt: skip

    def judge(self, measurement: Fidelity, policy: FidelityPolicy, subject: Shard) -> Verdict:
        """Passed only if something was compared, and everything compared is close and finite."""
        if isinstance(subject, Shard) and subject.ungated:
            left = (Covered(f"function {name}", _LEFT_OUT) for name in subject.ungated)
            measurement = replace(measurement, coverage=(*(measurement.coverage or ()), *left))
        return judge(measurement, policy, subject.qualified, own=_own(subject))

    def limits(self, policy: FidelityPolicy, subject: Shard) -> Limits:
        """Of the worst values of metrics, and of algebra and rounding."""
        return limits(policy, own=_own(subject))

    def figures(self, measurement: Fidelity) -> tuple[Figure, ...]:
        """Numbers of all probes."""
        return figures(measurement)

    def lacks(
        self, measurement: Fidelity, subject: Shard, place: Environment, artifact: Artifact | None
    ) -> Iterator[str]:
        """Probes that were not run, and positions that were not compared."""
        if subject.reference != "none" and not measurement.compared:
            yield "compares with no reference"
        split = subject.artifact is None or subject.uncompressed is not None
        if split and subject.reference != "none" and measurement.budget is None:
            yield "has no error budget"
        if subject.reference == "float32" and measurement.interface is None:
            yield "does not compare inputs, outputs and states with those declared"
        if subject.reference == "float32" and measurement.same_module is None:
            yield "does not say whether its reference is the same module"
        if subject.reference == "none" and measurement.unmoved is None:
            yield "does not say whether outputs depend on the input"
        if measurement.coverage is None:
            yield "does not say what its probes exercise"
        probes = grouped((c.probe, c) for c in measurement.comparisons)
        least = {**dict.fromkeys(SEEDED, subject.probes.count), "massive": len(MASSIVE)}
        if subject.family:  # No other shard has these.
            least["outlier"] = subject.probes.count
        # Golden tensors are probes of their own, whatever the manifest's kinds are.
        for kind in subject.probes.kinds if subject.golden is None else ():
            count = sum(outputs[0].kind == kind for outputs in probes.values())
            if count < (wanted := least.get(kind, 0)):
                yield f"has {count} {kind} probes, and at least {wanted} were asked"
        carries = any(each.what.startswith("state ") for each in measurement.coverage or ())
        if subject.reference == "float32" and carries:
            filled = {c.length for c in measurement.comparisons if c.kind == "long"}
            for length in {*subject.probes.lengths} - filled:
                yield f"has no probe of {length:,} keys"
        for probe, outputs in probes.items() if measurement.compared else ():
            # An output that the reference does not have has no positions at all.
            if not any(map(_is_whole, outputs)):
                yield f"leaves out positions of {probe}"


def _own(subject: Any) -> bool:
    return isinstance(subject, Shard) and subject.artifact is not None


_ALIKE = 0.97
"""Cosine below which, without a budget, it is worth a look whether something overflowed."""


def _overflow(measurement: Fidelity, context: ShardContext, cases: Sequence[Case]) -> str:
    """What makes the first NaN or infinity, on the shortest of the probes that are off."""
    budget = measurement.budget
    if isinstance(context.program, Pipeline) or (budget and budget.overflow):
        return budget.overflow if budget else ""
    off = {
        c.probe
        for c in measurement.comparisons
        if not c.undefined
        and (c.finite < 1 or c.one_zero or c.one_adds or (budget is None and c.worst < _ALIKE))
    }
    short = sorted((case for case in cases if case.name in off), key=lambda case: case.length)
    # It explains and decides nothing: where it cannot be run so, nothing is explained.
    with suppress(AneError):
        if short:
            model = read_model(context.artifact.path, function=context.shard.function)
            return first_overflow(model, short[:2])
    return ""


def _lost(context: ShardContext) -> Iterator[Covered]:
    """Functions of a reference package that the artifact lacks, or that are not run mixed."""
    shard, program = context.shard, context.program
    if not isinstance(shard.reference, Path) or shard.golden is not None:
        return
    own = {*entry_points(context.artifact.path)}
    own |= set() if isinstance(program, Pipeline) else {*program.program.functions}
    for name in entry_points(shard.reference):
        if name not in own:
            how = "the reference has it, and the package does not"
            remedy = "convert it, or name a reference with the package's functions alone"
            yield Covered(f"function {name}", how, exercised=False, remedy=remedy)
    if isinstance(program, Pipeline) or not program.states:
        return
    remedy = "give states that functions share one name and one shape"
    theirs = counterpart(shard.reference, shard.function)
    for name, why in unmixed(program, shard.reference, theirs):
        yield Covered(f"state after function {name}", why, exercised=False, remedy=remedy)


def _is_whole(c: Comparison) -> bool:
    """Whether no position is left out; of an output that is one row, there is one."""
    positions = sorted({*c.positions, *c.both_zero, *c.one_zero, *c.undecided})
    if positions == [0]:
        return True
    first = positions[0] if positions else 0
    return len(positions) == c.length and positions == list(range(first, first + len(positions)))


FIDELITY = FidelityGate()
