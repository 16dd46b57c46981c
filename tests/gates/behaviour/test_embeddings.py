"""An encoder's verdicts: embeddings, and how prompts rank sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.behaviour import Behaviour, judge, measure
from pytest_ane.gates.behaviour._embeddings import Embeddings, Ranking, TextResult, kendall
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.chain import EMBEDDING
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Wire
from pytest_ane.probes.exact_chain import GoldenPrompt, ShardAlone

NAN = math.nan
GOOD = TextResult("music", 0.995, 0.1)
SAME = Ranking("music", (0.9, 0.4, 0.1), (0.85, 0.45, 0.05), "a guitar")
ALONE = (ShardAlone("L00", "block", 0.1, 0.99), ShardAlone("L01", "block", 0.4, 0.9))


def of(
    *texts: TextResult, rankings: Sequence[Ranking] = (SAME,), expect: Any = None, **policy: Any
) -> Verdict:
    behaviour = Behaviour((), (), {}, embeddings=Embeddings(texts, tuple(rankings), ALONE))
    return judge(behaviour, BehaviourPolicy.model_validate(policy), "minilm", expect or {})


def reasons(verdict: Verdict) -> list[str]:
    return [finding.reason for finding in verdict.reasons]


def test_passed_unless_the_reference_is_wrong() -> None:
    verdict = of(GOOD, expect={"music": "guitar"})
    assert verdict.status == "passed"
    assert verdict.values["embedding.cosine.min"] == 0.995
    assert verdict.values["kendall.min"] == 1.0
    assert verdict.values["top1"] == 1.0
    verdict = of(GOOD, expect={"music": "piano"})
    assert verdict.status == "failed"
    assert "it ranks 'a guitar' first for 'music', and 'piano' is expected" in reasons(verdict)[0]


def test_an_embedding_of_another_direction_or_norm() -> None:
    verdict = of(GOOD, TextResult("cats", 0.9, 0.2))
    assert verdict.status == "failed"
    assert reasons(verdict) == [
        "The embedding of 'cats' has cosine 0.9000, below min-embedding-cosine = 0.98"
    ]
    notes = [f.where.shard for f in verdict.findings if f.severity == "note"]
    assert notes == ["L01"]
    verdict = of(TextResult("cats", 0.9999, 5.0))
    assert [f.figure for f in verdict.reasons] == ["embedding.relative_l2.max"]
    assert "above 0.2828" in reasons(verdict)[0]


def test_another_order_or_nan() -> None:
    swapped = Ranking("music", (0.9, 0.4, 0.1), (0.9, 0.1, 0.4), "a guitar")
    verdict = of(GOOD, rankings=[SAME, swapped])
    assert reasons(verdict) == [
        "Sentences are in another order for 'music': Kendall's tau is 0.333, below "
        "min-kendall = 0.9"
    ]
    assert of(GOOD, rankings=[SAME, swapped], min_kendall=0.3).status == "passed"
    broken = Ranking("music", (0.9, 0.4, 0.1), (NAN, 0.4, 0.1), "a guitar")
    verdict = of(GOOD, TextResult("cats", NAN, NAN), rankings=[broken])
    assert reasons(verdict)[0] == "The embedding of 'cats' is not finite, or zero"
    assert [f.figure for f in verdict.reasons] == ["", "kendall.min", "top1"]


@pytest.mark.parametrize(("second", "same"), [(0.895, True), (0.88, False)])
def test_another_best_sentence_unless_they_tie(second: float, same: bool) -> None:
    ranking = Ranking("music", (0.9, second, 0.1), (0.8, 0.9, 0.1), "a guitar")
    assert ranking.same_best is same
    verdict = of(GOOD, rankings=[ranking], min_kendall=-1)
    assert verdict.status == ("passed" if same else "failed")


def test_nothing_to_embed_and_too_few_sentences() -> None:
    assert of(rankings=[]).status == "unproven"
    verdict = of(GOOD, rankings=[])
    assert verdict.status == "failed"
    assert "There are not 3 sentences that the reference tells apart" in reasons(verdict)[0]
    alike = Ranking("music", (0.5, 0.499, 0.501), (0.5, 0.6, 0.4), "a guitar")
    assert of(GOOD, rankings=[alike]).status == "failed"
    assert of(GOOD, rankings=[alike, SAME]).status == "passed"
    assert of(GOOD, rankings=[], min_kendall=-1).status == "passed"


@pytest.mark.parametrize(
    ("expected", "actual", "tau"),
    [
        ((0.1, 0.2, 0.3, 0.4), (0.2, 0.3, 0.4, 0.5), 1.0),
        ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), -1.0),
        # One of six pairs is swapped: (5 - 1) / 6; one of three is equal: (2 - 0) / 3.
        ((0.1, 0.2, 0.3, 0.4), (0.1, 0.3, 0.2, 0.4), 2 / 3),
        ((0.1, 0.2, 0.3), (0.1, 0.1, 0.3), 2 / 3),
        # What the reference has 0.005 apart has no order to keep.
        ((0.1, 0.2, 0.205), (0.1, 0.3, 0.2), 1.0),
        ((0.1, 0.101, 0.102), (0.1, 0.2, 0.3), NAN),
        ((0.1, 0.2, NAN), (0.1, 0.2, 0.3), NAN),
    ],
)
def test_kendall(expected: tuple[float, ...], actual: tuple[float, ...], tau: float) -> None:
    assert kendall(expected, actual) == pytest.approx(tau, nan_ok=True)


def mean(rows: FloatArray) -> FloatArray:
    return rows.mean(axis=0, keepdims=True)


def encoder(pool: Any = mean, block: Any = lambda rows: rows) -> Chain:
    """Token t is the t-th unit vector; a block, and pooling."""
    steps = (
        ChainStep(Wire("L00"), lambda: block, causal=False),
        ChainStep(Wire("pooling", gives=EMBEDDING, kind="pooling"), lambda: pool, causal=False),
    )
    return Chain(lambda ids: np.eye(8, dtype=np.float32)[list(ids)], steps)


TEXTS = {"query": [0, 1, 2], "near": [0, 1, 3], "far": [0, 4, 5], "other": [6, 7, 5]}
GOLDEN = [
    GoldenPrompt(name, tuple(ids), encoder().embedding(ids), (), (), "", sentence=name != "query")
    for name, ids in TEXTS.items()
]


def states(prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
    rows = np.eye(8, dtype=np.float32)[TEXTS[prompt]]
    return rows, rows


def measured(chain: Chain) -> Embeddings:
    behaviour = measure(chain, GOLDEN, states, str, {})
    return behaviour.embeddings


def test_measured_of_the_right_chain() -> None:
    right = measured(encoder())
    assert [text.cosine for text in right.texts] == pytest.approx([1.0] * 4)
    (ranking,) = right.rankings
    assert ranking.expected == pytest.approx((2 / 3, 1 / 3, 0.0))
    assert (ranking.best, ranking.tau) == ("near", 1.0)
    assert [(alone.shard, alone.error) for alone in right.alone] == [("L00", 0), ("pooling", 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        encoder(pool=lambda rows: rows[:1]),  # The first position in the mean's place.
        encoder(pool=lambda rows: mean(np.concatenate([rows, -rows[-1:].repeat(5, axis=0)]))),
        encoder(pool=lambda rows: mean(rows) * 4),
        encoder(block=lambda rows: rows[::-1] * [1, 1, 1, 0, 1, 1, 1, 1]),
    ],
    ids=["cls for mean", "padding is pooled", "norm", "a channel is lost"],
)
def test_measured_of_wrong_ones(wrong: Chain) -> None:
    behaviour = Behaviour((), (), {}, embeddings=measured(wrong))
    assert judge(behaviour, BehaviourPolicy(), "toy").status == "failed"


def test_position_0_of_an_encoder_is_no_attention_sink() -> None:
    """An error there alone counts, for it may be the one that is pooled."""

    def spoilt(rows: FloatArray) -> FloatArray:
        return rows * np.where(np.arange(len(rows)) == 0, 2, 1)[:, None]

    assert measured(encoder(block=spoilt)).alone[0].error > 0.5


def test_prompts_rank_one_another_without_sentences_and_no_text_goes_on() -> None:
    prompts = [GoldenPrompt(g.name, g.ids, g.logits, (), (), "") for g in GOLDEN]
    behaviour = measure(encoder(), prompts, None, str, {})
    assert [len(r.expected) for r in behaviour.embeddings.rankings] == [3] * 4
    with pytest.raises(ExecutionError, match="an encoder gives embeddings"):
        encoder().answer([1, 2], 3)
