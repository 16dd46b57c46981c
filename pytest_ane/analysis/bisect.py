"""The fewest shards whose exact versions make a red stack green.

A stack is red if too much is wrong with it, and with more shards exact less is wrong: the verdict
is monotone in the set of exact shards. The search is by binary splitting. Of the suspects, the
worst first, it finds the shortest beginning that restores the verdict; the last of that beginning
is to blame, for without it all before do not suffice. It stays exact, and the search goes on among
those before it until what was found suffices. So none of the shards found can be spared; where
each is enough to break the stack, or errors add up in the order of suspicion, no smaller set
restores the verdict.

Sources: F. K. Hwang, A method for detecting all defective members in a population by group testing,
J. Am. Stat. Assoc. 67 (1972), for splitting groups whose size follows from the tests that are
left; U. Junker, QuickXplain, AAAI 2004, for minimal sets under a monotone test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ane.analysis.drift import compare_rows
from pytest_ane.analysis.passes import Passes
from pytest_ane.chain.chain import Chain
from pytest_ane.chain.exact import ReferenceStates, exact_chain, teacher_forced
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.behaviour.judge import judge
from pytest_ane.gates.behaviour.measure import measure
from pytest_ane.manifest import BehaviourPolicy

Exact = frozenset[str]
"""Shards whose reference stands in for them."""


@dataclass(frozen=True)
class Bisection:
    """What a search found.

    Attributes:
        outcome: `green`, as the stack is; `found`; `many`, more shards than were looked for;
            `reference`, red with all shards exact.
        shards: those to blame, the least suspicious first; of `many` the first few of them.
        enough: how many of the worst suspects restored the verdict together.
        evaluations: stacks that were evaluated, each once.
    """

    outcome: Literal["green", "found", "many", "reference"]
    shards: tuple[str, ...] = ()
    enough: int = 0
    evaluations: int = 0


def most_evaluations(shards: int, to_blame: int) -> int:
    """The most stacks that a search of so many shards evaluates: 2 + 2 log2(n) for each found."""
    return 2 + to_blame * _tests(shards)


def search(suspects: Sequence[str], passes: Callable[[Exact], bool], most: int = 4) -> Bisection:
    """Find the fewest suspects that `passes` needs; `most` is where to give up.

    `passes` is asked at most `most_evaluations(len(suspects), found)` times, each set once.
    """
    asked: dict[Exact, bool] = {}

    def ask(exact: Sequence[str]) -> bool:
        key = frozenset(exact)
        if key not in asked:
            asked[key] = passes(key)
        return asked[key]

    if ask(()):
        return Bisection("green", evaluations=len(asked))
    if not ask(suspects):
        return Bisection("reference", evaluations=len(asked))
    found: list[str] = []
    rest, enough = list(suspects), 0
    while True:
        # With all of `rest` exact beside those found it is green, without them red.

        def enough_with(n: int, held: Sequence[str] = tuple(found)) -> bool:
            return ask([*held, *rest[:n]])

        count = _fewest(len(rest), _tests(len(suspects)) - 1, enough_with)
        enough = enough or count
        found.append(rest[count - 1])
        del rest[count - 1 :]
        if ask(found):
            return Bisection("found", tuple(found), enough, len(asked))
        if len(found) >= most:
            return Bisection("many", tuple(found), enough, len(asked))


def _tests(shards: int) -> int:
    """Evaluations for each shard found: one of them asks whether those found suffice."""
    return math.floor(2 * math.log2(shards))


def _fewest(total: int, tests: int, passes: Callable[[int], bool]) -> int:
    """The smallest n in 1..total that passes, given that `total` does and 0 does not.

    Asks for as few as can be, as long as the tests that are left can tell all others apart: the
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
class Trial:
    """One stack that was evaluated: its exact shards in running order, and the verdict."""

    exact: tuple[str, ...]
    verdict: Verdict


def bisect(
    chain: Chain,
    reference: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates,
    policy: BehaviourPolicy,
    model: str,
    provenance: Mapping[str, Any],
    *,
    most: int = 4,
    say: Callable[[Trial], None] = lambda _: None,
) -> Bisection:
    """Find the fewest shards of a red stack to blame; `say` is told each stack's verdict.

    `reference` should be `lazy_reference`: every stack takes all prompts along at once, so that
    an exact shard's weights are read once a stack and only one shard's are held.
    """
    passes, names = Passes(golden), [step.shard for step in chain.steps]
    alone: list[tuple[str, float]] = []

    def verdict(exact: Exact) -> bool:
        known = passes.run(exact_chain(chain, reference, exact))
        if not exact:
            # What a shard does alone is the same in every stack, so it is measured once.
            known = replace(known, steps=chain.steps)
        found = measure(known, golden, states, _no_text, provenance)
        alone.extend(found.alone)
        kept = tuple(pair for pair in alone if pair[0] not in exact)
        judged = judge(replace(found, alone=kept), policy, model)
        say(Trial(tuple(name for name in names if name in exact), judged))
        return judged.status == "passed"

    return search(suspects(chain, golden, states), verdict, most)


def suspects(chain: Chain, golden: Sequence[GoldenPrompt], states: ReferenceStates) -> list[str]:
    """Shards by the relative error of their output on exact states, the worst first."""

    def error(name_and_error: tuple[str, float]) -> float:
        value = name_and_error[1]
        return -math.inf if math.isnan(value) else -value

    found = []
    for at in teacher_forced(chain, golden, states):
        reading = compare_rows(at.exact, at.own)
        worst = reading.rest or reading.first
        found.append((at.step.shard, worst.relative_l2 if worst else math.nan))
    return [name for name, _ in sorted(found, key=error)]


def _no_text(_: Sequence[int]) -> str:
    return ""
