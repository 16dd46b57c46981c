"""An encoder's behaviour: embeddings of texts, and how queries rank sentences by them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ane.gates.behaviour._alone import note, table
from pytest_ane.gates.verdict import (
    Column,
    Figure,
    Finding,
    Limits,
    Table,
    Verdict,
    Where,
    bounds,
    limited,
    nothing,
)
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.metrics.tensors import cosine, is_cosine, relative_l2
from pytest_ane.models.chain import Chain
from pytest_ane.probes.exact_chain import GoldenPrompt, ReferenceStates, ShardAlone, forced

LEAST = 3
"""Sentences that have an order worth comparing."""
_TIE = 0.01
"""Difference of two cosines below which either sentence may come first."""


@dataclass(frozen=True)
class TextResult:
    """One text's embedding against the reference's: `relative` L2 sees a wrong norm too."""

    text: str
    cosine: float
    relative: float

    def __post_init__(self) -> None:
        if not is_cosine(self.cosine) or self.relative < 0:
            raise ValueError("an embedding has a cosine or an error that is none")


@dataclass(frozen=True)
class Ranking:
    """A query's cosine with each sentence, and the one that the reference ranks first."""

    query: str
    expected: tuple[float, ...]
    actual: tuple[float, ...]
    best: str

    def __post_init__(self) -> None:
        if len(self.expected) != len(self.actual) or len(self.expected) < LEAST:
            raise ValueError(f"{len(self.actual)} and {len(self.expected)} sentences are no match")
        if not all(map(is_cosine, (*self.expected, *self.actual))):
            raise ValueError("a cosine is neither in -1..1 nor NaN")

    @cached_property
    def tau(self) -> float:
        return kendall(self.expected, self.actual)

    @property
    def ordered(self) -> bool:
        return max(self.expected) - min(self.expected) >= _TIE

    @property
    def same_best(self) -> bool:
        """Whether the first sentence is the reference's, or one that it has as near as a tie."""
        if any(map(math.isnan, self.actual)):
            return False
        return max(self.expected) - self.expected[int(np.argmax(self.actual))] < _TIE


@dataclass(frozen=True)
class Embeddings:
    """All texts, all queries, and each shard alone on the reference's own states."""

    texts: tuple[TextResult, ...]
    rankings: tuple[Ranking, ...]
    alone: tuple[ShardAlone, ...]

    @property
    def ordered(self) -> list[Ranking]:
        """Queries for which the reference has an order."""
        return [ranking for ranking in self.rankings if ranking.ordered]


def measure_embeddings(
    chain: Chain, golden: Sequence[GoldenPrompt], states: ReferenceStates | None
) -> tuple[Embeddings, list[FloatArray]]:
    """Embed every text with a chain, and compare; the embeddings `[1, C]` come along."""
    own = [chain.embedding(g.ids) for g in golden]
    exact = [g.logits for g in golden]
    texts = tuple(
        TextResult(g.name, float(cosine(a, b)[0]), float(relative_l2(a, b)[0]))
        for g, a, b in zip(golden, own, exact, strict=True)
    )
    queries = [g for g in golden if not g.sentence]
    alone = forced(chain, queries, states)[0] if states else ()
    return Embeddings(texts, tuple(_rankings(golden, own, exact)), alone), own


def kendall(expected: Sequence[float], actual: Sequence[float]) -> float:
    """Kendall's tau over the pairs that the reference tells apart by a tie's difference or more.

    (in order - swapped) / all such pairs; one that is equal counts as neither, NaN stays NaN.
    Source: Kendall, Biometrika 30 (1938). What is nearer than a tie has an order by rounding alone,
    which rank taus of all pairs are mostly made of where sentences are far from a query.
    """
    if not np.isfinite([*expected, *actual]).all():
        return math.nan
    a, b = (np.subtract.outer(side, side) for side in (np.array(expected), np.array(actual)))
    apart = a >= _TIE
    return float(np.sign(b[apart]).mean()) if apart.any() else math.nan


def _rankings(
    golden: Sequence[GoldenPrompt], own: Sequence[FloatArray], exact: Sequence[FloatArray]
) -> Iterator[Ranking]:
    """Of each prompt over the sentences, or over the other prompts where there are none."""
    listed = any(g.sentence for g in golden)
    for i, query in enumerate(golden):
        others = [j for j, g in enumerate(golden) if j != i and (g.sentence or not listed)]
        if query.sentence or len(others) < LEAST:
            continue
        expected, actual = (
            tuple(float(cosine(side[i], side[j])[0]) for j in others) for side in (exact, own)
        )
        best = golden[others[int(np.argmax(expected))]].name
        yield Ranking(query.name, expected, actual, best)


def judge_embeddings(
    measured: Embeddings, policy: BehaviourPolicy, model: str, expect: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> Verdict:  # fmt: skip
    if not measured.texts:
        reason = "There is no text to embed, so nothing was compared"
        return nothing("behaviour", model, reason, "add prompts", provenance=provenance)
    findings = [*_wrong_reference(measured, expect), *_broken(measured, policy)]
    # `bisect`, which a note may name, compares logits.
    findings += [replace(each, remedy="") for each in note(measured.alone) if findings]
    if not measured.ordered and policy.min_kendall > -1:
        reason = f"There are not {LEAST} sentences that the reference tells apart, so min-kendall"
        reason = f"{reason} = {policy.min_kendall:g} was not tested"
        remedy = "name a file of more as 'sentences', or set min-kendall to -1"
        findings.append(Finding("failed", reason, remedy=remedy))
    made, listed = tuple(figures(measured, policy)), tuple(_tables(measured, policy))
    return Verdict("behaviour", model, made, tuple(findings), listed, provenance)


def limits(policy: BehaviourPolicy) -> Limits:
    return {
        **bounds("above", embedding__cosine__min=policy.min_embedding_cosine,
                 kendall__min=policy.min_kendall, top1=policy.min_top1),
        **bounds("below", embedding__relative_l2__max=_most_relative(policy)),
    }  # fmt: skip


def figures(measured: Embeddings, policy: BehaviourPolicy) -> Iterator[Figure]:
    yield from limited(_statistics(measured), limits(policy))


def _statistics(measured: Embeddings) -> Iterator[Figure]:
    cosines = [text.cosine for text in measured.texts]
    farthest = float(np.max([text.relative for text in measured.texts]))
    least = float(np.min(cosines))
    yield Figure("embedding.cosine.min", least, label="embedding cosine", shown=True)
    yield Figure("embedding.relative_l2.max", farthest, label="relative L2")
    if rankings := measured.ordered:
        taus = [ranking.tau for ranking in rankings]
        same = sum(ranking.same_best for ranking in rankings) / len(rankings)
        yield Figure("kendall.min", float(np.min(taus)), label="Kendall's tau", shown=True)
        yield Figure("top1", same, "%", "same best sentence", shown=True)
        yield Figure("kendall.mean", float(np.mean(taus)), label="mean tau")
        yield Figure("queries", len(rankings), "queries", shown=True)
        yield Figure("reference.best", "; ".join(f"{r.query}: {r.best}" for r in rankings))
    yield Figure("embedding.cosine.mean", float(np.mean(cosines)), label="mean embedding cosine")
    yield Figure("texts", len(cosines), "texts", shown=True)


def _most_relative(policy: BehaviourPolicy) -> float:
    """For a cosine sees no scale: as of a package of the user's own in `policy.fidelity`."""
    return 2 * math.sqrt(1 - policy.min_embedding_cosine)


def _broken(measured: Embeddings, policy: BehaviourPolicy) -> Iterator[Finding]:
    """One finding for each threshold that is not kept, which NaN keeps none of."""
    worst = max(measured.texts, key=lambda t: math.inf if math.isnan(t.cosine) else -t.cosine)
    off = max(measured.texts, key=lambda t: math.inf if math.isnan(t.relative) else t.relative)
    nan = math.isnan(worst.cosine)
    if nan:
        reason = f"The embedding of {worst.text!r:.60} is not finite, or zero"
        yield Finding("failed", reason, Where(probe=worst.text))
    reasons = {
        "embedding.cosine.min": f"The embedding of {worst.text!r:.60} has cosine "
        f"{worst.cosine:.4f}, below min-embedding-cosine = {policy.min_embedding_cosine:g}",
        "embedding.relative_l2.max": f"The embedding of {off.text!r:.60} has relative L2 "
        f"{off.relative:.4g}, above {_most_relative(policy):.4g}, which min-embedding-cosine "
        "comes to; is its norm right?",
    }
    if ordered := measured.ordered:
        last = min(ordered, key=lambda r: -2.0 if math.isnan(r.tau) else r.tau)
        others = ", ".join(repr(r.query) for r in ordered if not r.same_best)
        reasons["kendall.min"] = (
            f"Sentences are in another order for {last.query!r}: Kendall's tau is {last.tau:.3f}, "
            f"below min-kendall = {policy.min_kendall:g}"
        )
        reasons["top1"] = (
            f"Another sentence comes first for {others}, below min-top1 = {policy.min_top1:g}"
        )
    for figure in figures(measured, policy):
        if not figure.passes and not (nan and figure.name.startswith("embedding")):
            yield Finding("failed", reasons[figure.name], figure=figure.name)


def _wrong_reference(measured: Embeddings, expect: Mapping[str, str]) -> Iterator[Finding]:
    faults = [
        f"it ranks {r.best!r} first for {r.query!r}, and {expect[r.query]!r} is expected"
        for r in measured.rankings
        if expect.get(r.query, "") not in r.best
    ]
    if faults:
        remedy = "check the source of its weights, its tokenizer and its pooling first"
        yield Finding("failed", f"The reference is wrong: {'; '.join(faults)}", remedy=remedy)


def _tables(measured: Embeddings, policy: BehaviourPolicy) -> Iterator[Table]:
    tau = Column("Kendall's tau", "", policy.min_kendall, "above")
    columns = (Column("query"), tau, Column("same best"), Column("the reference's best"))
    same = ((r, "yes" if r.same_best else "no") for r in measured.rankings)
    rows = tuple((r.query, r.tau, word, r.best) for r, word in same)
    yield Table("queries, and the order of the sentences", columns, rows, "queries")
    texts = sorted(measured.texts, key=lambda t: -2 if math.isnan(t.cosine) else t.cosine)
    least = Column("cosine", "", policy.min_embedding_cosine, "above")
    most = Column("relative L2", "", _most_relative(policy), "below")
    cells = tuple((t.text, t.cosine, t.relative) for t in texts)
    yield Table("embeddings, the worst first", (Column("text"), least, most), cells, "embeddings")
    if measured.alone:
        yield table(measured.alone)
