"""`pytest-ane bisect`: find the fewest shards to blame for a red stack.

The verdict is monotone in the set of exact shards. The search is by binary splitting. Of the
suspects, the worst first, it finds the shortest beginning that restores the verdict; the last of
that beginning is to blame. It stays exact, and the search goes on among those before it until the
shards to blame suffice. So none of them can be spared; where each is enough to break the stack, or
errors add up in the order of suspicion, no smaller set restores the verdict.

Sources: F. K. Hwang, A method for detecting all defective members in a population by group testing,
J. Am. Stat. Assoc. 67 (1972), for splitting groups whose size follows from the tests that are left;
U. Junker, QuickXplain, AAAI 2004, for minimal sets under a monotone test.
"""

from __future__ import annotations

import argparse
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pytest_ane.cli.options import add_arithmetic, add_stack
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.gates.behaviour.judge import judge
from pytest_ane.gates.behaviour.measure import measure
from pytest_ane.gates.verdict import Verdict, counted, some
from pytest_ane.mlprogram.arithmetic import label
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import Answer, Chain, ShardRun, Watch, lead, likeliest_token
from pytest_ane.models.families import Streams
from pytest_ane.probes.exact_chain import (
    GoldenPrompt,
    ShardAlone,
    exact_chain,
    run_all,
    teacher_forced,
)
from pytest_ane.project.stack import Stack
from pytest_ane.report.arithmetic import rules_lines
from pytest_ane.report.verdict import reasons, row
from pytest_ane.tools.diff import rank
from pytest_ane.tools.drift import compare_rows, open_stack

EXAMPLE = "pytest-ane bisect --model smollm2 --most 2"
Exact: TypeAlias = frozenset[str]
"""Shards whose reference stands in for them."""
_BUDGET = 256 << 20
"""Bytes of hidden states kept between stacks."""
_NAMED = 6
_Prefix: TypeAlias = "tuple[Callable[[], ShardRun], ...]"
"""The first shards of a stack."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and where to give up."""
    add_stack(parser)
    add_arithmetic(parser, by_manifest=True)
    words = "give up at more than this (default: 4)"
    parser.add_argument("--most", type=int, default=4, metavar="N", help=words)


def run(options: argparse.Namespace) -> Output:
    """Search, with a line for each stack that was evaluated."""
    if options.most < 1:
        raise ExecutionError(f"--most {options.most}: give a number from 1 on.")
    evaluations: list[StackEvaluation] = []

    def note(evaluation: StackEvaluation) -> None:
        evaluations.append(evaluation)
        tell(evaluation_line(evaluation, len(evaluations), len(stack.artifacts)))

    with open_stack(options.manifest, options.model, options.cache, options.arithmetic) as stack:
        result = bisect(stack, most=options.most, progress=note)
        tell("")
        rules = {"rules": stack.rules} if stack.arithmetic == "ane" else {}
        for shares in rules.values():
            yield from rules_lines(shares)
        for number, evaluation in enumerate(evaluations, start=1):
            yield evaluation_line(evaluation, number, len(stack.artifacts))
    verdicts = [evaluation.verdict for evaluation in evaluations]
    last = next((v for v in verdicts if v.status == "unproven"), verdicts[-1])
    says = sentence(result, stack.model, len(stack.artifacts), last)
    stacks = [{"exact": e.exact, "status": e.verdict.status} for e in evaluations]
    data = {**vars(result), "arithmetic": label(stack.arithmetic), **rules, "evaluations": stacks}
    if result.outcome == "unproven":
        return Failed(says, data)
    yield says
    return data


@dataclass(frozen=True)
class Bisection:
    """The result of a search.

    Attributes:
        outcome: `green`, as the stack is; `unproven`, as it is; `found`; `many`, more shards than
            were looked for; `reference`, red with all shards exact.
        shards: those to blame, the least suspicious first; of `many` the first few of them.
        enough: how many of the worst suspects restored the verdict together.
    """

    outcome: Literal["green", "unproven", "found", "many", "reference"]
    shards: tuple[str, ...] = ()
    enough: int = 0
    evaluations: int = 0


def most_evaluations(shards: int, to_blame: int) -> int:
    """The most stacks that a search of n shards evaluates: 2, and 2 log2(n) for each to blame."""
    return 2 + to_blame * _tests(shards)


def search(suspects: Sequence[str], passes: Callable[[Exact], bool], most: int = 4) -> Bisection:
    """Find the fewest suspects that `passes` needs; `most` is where to give up.

    `passes` is asked each set once, `most_evaluations` at most.
    """
    results: dict[Exact, bool] = {}

    def evaluate(exact: Sequence[str]) -> bool:
        key = frozenset(exact)
        if key not in results:
            results[key] = passes(key)
        return results[key]

    if evaluate(()):
        return Bisection("green", evaluations=len(results))
    if not evaluate(suspects):
        return Bisection("reference", evaluations=len(results))
    blamed: list[str] = []
    rest, enough = list(suspects), 0
    while True:
        # With all of `rest` and the blamed exact it is green, without `rest` red.
        tests = _tests(len(suspects)) - 1
        count = _fewest(len(rest), tests, lambda n: evaluate([*blamed, *rest[:n]]))
        enough = enough or count
        blamed.append(rest[count - 1])
        del rest[count - 1 :]
        if evaluate(blamed):
            return Bisection("found", tuple(blamed), enough, len(results))
        if len(blamed) >= most:
            return Bisection("many", tuple(blamed), enough, len(results))


def _tests(shards: int) -> int:
    return math.floor(2 * math.log2(shards))


def _fewest(total: int, tests: int, passes: Callable[[int], bool]) -> int:
    """The smallest n in 1..total that passes, given that `total` does and 0 does not.

    Tries as few as can be, as long as the tests that are left can tell all others apart: the
    worst suspects are the likeliest, and few exact shards cost little.
    """
    low, high = 0, total
    while high - low > 1:
        tests -= 1
        middle = max(low + 1, high - 2**tests)
        if passes(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class StackEvaluation:
    """A verdict on a stack; its exact shards are in running order."""

    exact: tuple[str, ...]
    verdict: Verdict


def bisect(
    stack: Stack, *, most: int = 4, progress: Callable[[StackEvaluation], None] = lambda _: None
) -> Bisection:
    """Find the fewest shards of a red stack to blame; `progress` gets each stack's verdict.

    A stack that is unproven has none. Every stack takes all prompts along at once, so that of a
    lazy reference only one exact shard's weights are held, and read once a stack.
    """
    chain, golden, states = stack.chain, stack.golden, stack.states
    runner, names = StackRunner(golden), [step.shard for step in chain.steps]
    alone: list[ShardAlone] = []
    unproven = False

    def verdict(exact: Exact) -> bool:
        nonlocal unproven
        mixed = runner.run(exact_chain(chain, stack.reference, exact))
        if not exact:
            # A shard under teacher forcing is the same in every stack, so it is measured once.
            mixed = replace(mixed, steps=chain.steps)
        behaviour = measure(mixed, golden, states, lambda _: "", stack.provenance)
        alone.extend(behaviour.alone)
        kept = tuple(a for a in alone if a.shard not in exact)
        judged = judge(replace(behaviour, alone=kept), stack.policy, stack.model)
        progress(StackEvaluation(tuple(name for name in names if name in exact), judged))
        unproven = judged.status == "unproven"
        return judged.status != "failed"

    result = search(suspect_shards(stack), verdict, most)
    return replace(result, outcome="unproven") if result.outcome == "green" and unproven else result


def suspect_shards(stack: Stack) -> list[str]:
    """Shards by the relative error of their output on exact states, the worst first."""
    errors = {}
    for shard in teacher_forced(stack.chain, stack.golden, stack.states):
        reading = compare_rows(shard.exact, shard.own)
        worst = reading.rest or reading.first
        errors[shard.step.shard] = rank(worst.relative_l2 if worst else math.nan)
    return sorted(errors, key=lambda name: -errors[name])


@dataclass(frozen=True, eq=False)
class PrecomputedChain(Chain):
    """A chain whose logits on the golden prompts were computed before.

    `rows` are `[T', V]` by prompt, beyond its end those of the reference's continuation.
    """

    rows: Mapping[tuple[int, ...], FloatArray] = field(default_factory=dict)

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` of a golden prompt."""
        return self.rows[tuple(ids)][: len(ids)]

    def answer(
        self, ids: Sequence[int], count: int, guess: Sequence[int] = (),
        watch: Watch | None = None, own: int | None = None,
    ) -> Answer:  # fmt: skip
        """As `Chain.answer` up to the first token that is not the reference's; no block runs."""
        rows = self.rows[tuple(ids)]
        ahead = rows[(len(ids) if own is None else own) - 1 :][:count]
        tokens = tuple(map(likeliest_token, ahead))
        return Answer(rows[: len(ids)], tokens, tuple(map(lead, ahead)))


class StackRunner:
    """Runs stacks on the golden prompts and their reference continuations, shard by shard.

    As long as a stack agrees with the continuation, that is also its greedy text; where it first
    differs is all that a verdict looks at. Stacks with equal beginnings run those once: `budget`
    bytes of hidden states are kept, the latest used.
    """

    def __init__(self, golden: Sequence[GoldenPrompt], budget: int = _BUDGET) -> None:
        self._golden, self._budget, self._held = golden, budget, 0
        self._kept: OrderedDict[_Prefix, list[Streams]] = OrderedDict()

    def run(self, chain: Chain) -> PrecomputedChain:
        """One stack; its shards are those of an earlier one if their `open` is the same."""
        key = tuple(step.open for step in chain.blocks)
        done = next((n for n in range(len(key), 0, -1) if key[:n] in self._kept), 0)
        if done:
            self._kept.move_to_end(key[:done])
            streams = self._kept[key[:done]]
        else:
            texts = [max(g.ids, (*g.prompt, *g.greedy[:-1]), key=len) for g in self._golden]
            streams = [{"x": chain.embed(text)} for text in texts]
        for i, step in enumerate(chain.blocks[done:], start=done + 1):
            streams = list(map(dict, streams))
            run_all(step, streams)
            self._kept[key[:i]] = streams
            self._held += _bytes(streams)
            while self._held > self._budget:
                self._held -= _bytes(self._kept.popitem(last=False)[1])
        streams = list(map(dict, streams))
        for step in chain.steps:
            if step.wire.is_head:
                run_all(step, streams)
        pairs = [(g.ids, s["logits"]) for g, s in zip(self._golden, streams, strict=True)]
        # Of the same prompt twice, the longer continuation.
        rows = dict(sorted(pairs, key=lambda pair: len(pair[1])))
        return PrecomputedChain(chain.embed, (), rows=rows)


def _bytes(streams: list[Streams]) -> int:
    return sum(array.nbytes for stream in streams for array in stream.values())


def evaluation_line(evaluation: StackEvaluation, number: int, shards: int) -> str:
    """One stack that was evaluated: `3. exact: L07 - green (top-1 95.1%, KL 0.0265, ...)`."""
    verdict, names = evaluation.verdict, evaluation.exact
    values, numbers = verdict.values, row(verdict)
    colour = {"passed": "green", "failed": "red"}.get(verdict.status, "unproven")
    if {"top1", "kl.mean", "greedy.agreed"} <= values.keys():
        greedy = f"{values['greedy.agreed']} greedy tokens"
        numbers = f"top-1 {values['top1']:.1%}, KL {values['kl.mean']:.4f}, {greedy}"
    exact = "all" if len(names) == shards else some(names, _NAMED)
    return f"{number:>2}. exact: {exact or 'none'} - {colour} ({numbers})"


def sentence(result: Bisection, model: str, shards: int, last: Verdict) -> str:
    """The shards to blame; `last` is the first verdict that was unproven, or else the last."""
    why = next(iter(reasons(last)), "")
    plural = "are" if len(result.shards) > 1 else "is"
    says = {
        "unproven": f"{model} is unproven as it is, so no shard can be blamed: {why}",
        "green": f"{model} is green as it is: no shard is to blame",
        "reference": f"The reference itself does not meet the policy: {why}",
        "many": (
            f"More than {len(result.shards)} shards are to blame: the {result.enough} worst of "
            f"{shards} have to be exact for a green verdict; pytest-ane drift shows what each "
            "contributes"
        ),
        "found": (
            f"{', '.join(sorted(result.shards))} {plural} to blame: exact, nothing fails"
            + (f", and the verdict is unproven: {why}" if last.status == "unproven" else "")
        ),
    }
    return f"{says[result.outcome]} ({counted(result.evaluations, 'stack evaluation')})."
