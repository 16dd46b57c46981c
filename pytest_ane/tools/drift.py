"""`pytest-ane drift`: measure what each shard does to the hidden states."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.cli.options import add_arithmetic, add_stack
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.gates.behaviour.judge import judge
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.gates.verdict import Verdict, some
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares, label
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.mlprogram.metrics.logits import compare_logits
from pytest_ane.mlprogram.metrics.tensors import cosine
from pytest_ane.models.chain import Chain
from pytest_ane.models.families import Streams, apply_output, shard_input
from pytest_ane.probes.exact_chain import ForcedShard, GoldenPrompt, run_all, teacher_forced
from pytest_ane.project import process
from pytest_ane.project.choose import choose_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.progress import Progress
from pytest_ane.project.project import BackendName, default_backend, read_project
from pytest_ane.project.stack import Stack
from pytest_ane.report.arithmetic import rules_lines, wrapped
from pytest_ane.report.table import columns
from pytest_ane.report.verdict import reasons, row
from pytest_ane.tools.diff import rank

EXAMPLE = "pytest-ane drift --model smollm2 --json > drift.json"
_BUDGET = 256 << 20
"""Bytes of logits held at once."""
_NAMED = 4
"""More names than these are only counted."""
_COLUMNS = (
    "shard", "cosine", "rel L2", "pos 0", "max |x|",
    "own cos", "own L2", "end cos", "KL", "top-1",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and the arithmetic."""
    add_stack(parser)
    add_arithmetic(parser, by_manifest=True)


def run(options: argparse.Namespace) -> Output:
    """Measure, and say which shards break the stack."""
    with open_stack(options.manifest, options.model, options.cache, options.arithmetic) as stack:
        drift = measure_drift(stack, tell)
        tell("")
        if stack.arithmetic == "ane":
            drift = replace(drift, rules=stack.rules)
        causes = find_causes(drift, stack.policy, stack.model)
        yield from lines(drift, causes, stack.model)
    about = {"command": "drift", "model": stack.model}
    data = {**about, **vars(drift), "arithmetic": label(stack.arithmetic)}
    unproven = causes.stack.status == "unproven"
    return Failed(f"{stack.model} is unproven.", data) if unproven else data


@contextmanager
def open_stack(
    manifest: Path | None,
    name: str | None,
    cache: Path | None,
    arithmetic: Arithmetic | None = "typed",
) -> Iterator[Stack]:
    """A model's shards, built and chained; on a Mac they run in Core ML.

    In the arithmetic `ane` the CPU executor runs, on a Mac too; None is for what the manifest says:
    `ane` if that is named and no device runs. `AneError` where there is no such whole model, it has
    no golden prompts, or cannot be built.
    """
    process.choose()
    backend: BackendName = "cpu" if arithmetic == "ane" else default_backend()
    project = read_project(manifest, cache, notify=tell, backend_name=backend)
    model = choose_model(project.manifest, name, stacks=True)
    if not model.prompts:
        raise UnprovenError(
            f"{model.name} has no golden prompts to run through the stack; add "
            f"[[models.{model.name}.prompts]] to {project.manifest.path.name}.",
            "missing",
        )
    project.shards = model.shards
    project.progress = Progress(len(model.shards), tell)
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # A stack has a family.
        opened.check_logits()
        opened.check_compared()
        if sys.stderr and sys.stderr.isatty():
            for line in project.preflight.lines():
                tell(line, stays=True)
        if arithmetic is None:
            named = "ane" in model.arithmetic and project.backend.simulated() is not None
            arithmetic = "ane" if named else "typed"
        yield project.stack(model.name, arithmetic)


@dataclass(frozen=True)
class Reading:
    """Rows of several prompts against the exact ones.

    Attributes:
        cosine: the lowest of a row; NaN if any is undefined, None where both sides are zero in
            every row, as a pack of experts is that none was chosen of.
        relative_l2: |actual - exact| / |exact| over all rows together, Frobenius norms; NaN or
            infinite where undefined.
        largest: the greatest |actual|.
    """

    cosine: float | None
    relative_l2: float
    largest: float


@dataclass(frozen=True)
class Readings:
    """Position 0, which attends to itself alone, apart from the rest; None without positions."""

    first: Reading | None
    rest: Reading | None


@dataclass(frozen=True)
class ShardDrift:
    """One shard of the stack.

    Attributes:
        stack: what its output became, in the stack as it is, against the exact stream.
        own: its output on exact states, against the reference's.
        final: hidden states after the last block, all other shards exact; None for a slice of the
            head, which comes after them.
        end: the same stack's logits.
    """

    shard: str
    stack: Readings
    own: Readings
    final: Readings | None
    end: Behaviour


@dataclass(frozen=True)
class Drift:
    """All shards in running order.

    Attributes:
        end: logits of the stack as it is.
        reference: those of the reference itself, to see whether it meets a policy.
        rules: by which rules the shards ran in the ANE's arithmetic; None where they did not.
    """

    shards: tuple[ShardDrift, ...]
    end: Behaviour
    reference: Behaviour
    provenance: Mapping[str, Any]
    rules: RuleShares | None = None


def measure_drift(stack: Stack, progress: Callable[[str], None] = lambda _: None) -> Drift:
    """Run the golden prompts through a stack, and through one with each shard alone.

    All of them go along together, so that the reference reads each shard's weights once for the
    blocks; its head once for every few stacks. Greedy text is left out.
    """
    chain, golden = stack.chain, stack.golden

    def end(logits: Sequence[FloatArray]) -> Behaviour:
        results = [
            PromptResult(g.name, compare_logits(g.logits, rows, g.prompt), (), (), (), "", "")
            for g, rows in zip(golden, logits, strict=True)
        ]
        return Behaviour(tuple(results), (), {})

    walk, total = _Walk(chain, stack.reference, golden), len(chain.steps)
    for number, shard in enumerate(teacher_forced(chain, golden, stack.states), 1):
        progress(f"{shard.step.shard} ({number} of {total})")
        walk.head(shard) if shard.step.wire.is_head else walk.block(shard)
    whole = end([streams["logits"] for streams in walk.stack])
    shards: list[ShardDrift] = []
    for name, final, logits in walk.ends():
        progress(f"{name} alone ({len(shards) + 1} of {total})")
        shards.append(ShardDrift(name, *walk.readings[name], final, end(logits)))
    return Drift(tuple(shards), whole, end([g.logits for g in golden]), dict(stack.provenance))


class _Walk:
    """All stacks up to the same block: as it is, exact, and with each shard so far alone."""

    def __init__(self, chain: Chain, reference: Chain, golden: Sequence[GoldenPrompt]) -> None:
        self._exact = {step.shard: step for step in reference.steps}
        self._heads = [step for step in reference.steps if step.wire.is_head]
        self._golden = golden
        self._alone: dict[str, list[Streams]] = {}
        self._slices: dict[str, list[FloatArray]] = {}
        self.stack: list[Streams] = [{"x": chain.embed(g.ids)} for g in golden]
        self.readings: dict[str, tuple[Readings, Readings]] = {}
        self._final: list[FloatArray] = []

    def block(self, at: ForcedShard) -> None:
        wire = at.step.wire
        run_all(at.step, self.stack)
        run_all(self._exact[wire.shard], [stream for own in self._alone.values() for stream in own])
        exact, alone = list(map(dict, at.streams)), list(map(dict, at.streams))
        for right, wrong, output, own in zip(exact, alone, at.exact, at.own, strict=True):
            apply_output(right, wire, output)
            apply_output(wrong, wire, own)
        self._alone[wire.shard] = alone
        self._final = [stream["x"] for stream in exact]
        expected, actual = ([s[wire.gives] for s in streams] for streams in (exact, self.stack))
        self.readings[wire.shard] = compare_rows(expected, actual), compare_rows(at.exact, at.own)

    def head(self, at: ForcedShard) -> None:
        logits = at.step.all([shard_input(stream, at.step.wire) for stream in self.stack])
        for stream, rows in zip(self.stack, logits, strict=True):
            apply_output(stream, at.step.wire, rows)
        name = at.step.shard
        self._slices[name] = at.own
        self.readings[name] = compare_rows(at.exact, logits), compare_rows(at.exact, at.own)

    def ends(self) -> Iterator[tuple[str, Readings | None, list[FloatArray]]]:
        size = sum(g.logits.nbytes for g in self._golden) or 1
        names, count = list(self._alone), max(1, _BUDGET // size)
        for group in (names[i : i + count] for i in range(0, len(names), count)):
            streams = [stream for name in group for stream in self._alone[name]]
            finals = [
                compare_rows(self._final, [stream["x"] for stream in self._alone.pop(name)])
                for name in group
            ]
            for step in self._heads:
                run_all(step, streams)
            for i, (name, final) in enumerate(zip(group, finals, strict=True)):
                ended = streams[i * len(self._golden) : (i + 1) * len(self._golden)]
                yield name, final, [stream.pop("logits") for stream in ended]
        start = 0
        for name, own in self._slices.items():
            end = start + own[0].shape[1]
            logits = [prompt.logits.copy() for prompt in self._golden]
            for rows, part in zip(logits, own, strict=True):
                rows[:, start:end] = part
            yield name, None, logits
            start = end


def compare_rows(exact: Sequence[FloatArray], actual: Sequence[FloatArray]) -> Readings:
    """Readings of float32 `[T, C]` arrays, a pair for each prompt; position 0 apart."""
    sides = (exact, actual)
    return Readings(_reading(sides, slice(1)), _reading(sides, slice(1, None)))


def _reading(sides: Sequence[Sequence[FloatArray]], rows: slice) -> Reading | None:
    a, b = (np.concatenate([x[rows] for x in side]).astype(np.float64) for side in sides)
    if not len(a):
        return None
    live = a.any(axis=1) | b.any(axis=1)
    cosines = cosine(a[live], b[live])
    with np.errstate(invalid="ignore", divide="ignore"):
        error, norm = np.linalg.norm(b - a), np.linalg.norm(a)
        relative = 0.0 if error == 0 else float(error / norm)
    lowest = float(cosines.min()) if len(cosines) else None
    return Reading(lowest, relative, float(np.abs(b).max(initial=0.0)))


@dataclass(frozen=True)
class ShardEffect:
    """Mean KL in nats of an otherwise exact stack, and whether that breaks the policy.

    `share` is of the sum of all shards' KL; NaN where that is not finite.
    """

    shard: str
    kl: float
    share: float
    breaks: bool


@dataclass(frozen=True)
class Causes:
    """The verdicts on the stack as it is and on the reference; and all shards, the worst first."""

    stack: Verdict
    reference: Verdict
    effects: tuple[ShardEffect, ...]

    @property
    def breaking(self) -> tuple[str, ...]:
        """Shards that fail the policy alone in an otherwise exact stack, the worst first."""
        return tuple(effect.shard for effect in self.effects if effect.breaks)

    @property
    def half(self) -> int:
        """How many shards make up half of the sum of KL; all where that is undefined."""
        reached = np.cumsum([effect.share for effect in self.effects]) >= 0.5
        return int(reached.argmax()) + 1 if reached.any() else len(self.effects)


def find_causes(drift: Drift, policy: BehaviourPolicy, model: str) -> Causes:
    """Judge the stack, the reference, and every shard alone, by the behaviour gate's policy."""
    policy = policy.model_copy(update={"min_greedy": 0})

    def judged(behaviour: Behaviour) -> Verdict:
        return judge(behaviour, policy, model)

    kl = [mean_kl(shard.end) for shard in drift.shards]
    whole = sum(kl)
    whole = whole if whole > 0 and math.isfinite(whole) else math.nan
    effects = [
        ShardEffect(each.shard, own, own / whole, judged(each.end).status == "failed")
        for each, own in zip(drift.shards, kl, strict=True)
    ]
    effects.sort(key=lambda effect: -rank(effect.kl))
    return Causes(judged(drift.end), judged(drift.reference), tuple(effects))


def mean_kl(behaviour: Behaviour) -> float:
    """Mean KL in nats of all positions but the first of each prompt; NaN if there are none."""
    values = [p.kl for prompt in behaviour.prompts for p in prompt.positions[1:]]
    return max(float(np.mean(values)), 0.0) if values else math.nan


def lines(drift: Drift, causes: Causes, model: str) -> Iterator[str]:
    """The report, for a terminal of 80 columns; the page of a run draws it."""
    count = sum(max(len(p.positions) - 1, 0) for p in drift.end.prompts)
    yield f"{model}: {len(drift.shards)} shards; {count} positions (position 0 reported separately)"
    if drift.rules is not None:
        yield from wrapped(rules_lines(drift.rules))
    yield "  stack as it is: lowest cosine, relative L2, cosine at position 0, largest |x|"
    yield "  own, on exact states: lowest cosine, relative L2"
    yield "  alone, all others exact: lowest cosine after the last block, mean KL, top-1"
    yield ""
    yield from columns([_COLUMNS, *map(_row, drift.shards)], gap=" ")
    yield ""
    yield f"stack {causes.stack.status}: {row(causes.stack)}"
    yield sentence(causes)


def sentence(causes: Causes) -> str:
    """The verdict of a drift: the shards that break the stack alone, or that it is gradual."""
    if causes.reference.status == "failed":
        return f"The reference itself does not meet the policy: {reasons(causes.reference)[0]}"
    if causes.stack.status == "unproven":
        return f"Unproven, so no shard can be blamed: {reasons(causes.stack)[0]}"
    holds = causes.stack.status == "passed"
    if causes.breaking:
        does = "breaks it: it fails" if len(causes.breaking) == 1 else "break it: each fails"
        still = ", and the stack as it is passes all the same" if holds else ""
        return f"{some(causes.breaking, _NAMED)} {does} alone in an otherwise exact stack{still}."
    start = "No shard breaks it" if holds else "Gradual, no single shard fails alone"
    worst = causes.effects[0]
    if math.isnan(worst.share):
        return f"{start}: no KL at all."
    return (
        f"{start}: {worst.shard} has the most of the KL ({worst.share:.0%}), and {causes.half} of "
        f"{len(causes.effects)} make up half."
    )


def _row(shard: ShardDrift) -> tuple[str, ...]:
    both = [reading for reading in (shard.stack.first, shard.stack.rest) if reading]
    agreed = [p.top1 for prompt in shard.end.prompts for p in prompt.positions[1:]]
    largest = max((reading.largest for reading in both), key=rank, default=math.nan)
    return (
        shard.shard, _cosine(shard.stack.rest), f"{_l2(shard.stack):.1e}",
        _cosine(shard.stack.first), f"{largest:.1f}",
        _cosine(shard.own.rest), f"{_l2(shard.own):.1e}",
        _cosine(shard.final.rest) if shard.final else "-", f"{mean_kl(shard.end):.1e}",
        f"{sum(agreed) / len(agreed):.0%}" if agreed else "-",
    )  # fmt: skip


def _cosine(reading: Reading | None) -> str:
    return "-" if reading is None or reading.cosine is None else f"{reading.cosine:.4f}"


def _l2(readings: Readings) -> float:
    return readings.rest.relative_l2 if readings.rest else math.nan
