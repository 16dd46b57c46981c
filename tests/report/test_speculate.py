"""Speculative decoding in words."""

from __future__ import annotations

import pytest

from pytest_ane.chain.decode import Decoded
from pytest_ane.gates.throughput.breakeven import BreakEven
from pytest_ane.gates.throughput.counters import Speculated
from pytest_ane.gates.throughput.trial import Trial
from pytest_ane.report.speculate import break_even, costs, counters, outcome


@pytest.mark.parametrize(
    ("t1", "tv", "says"),
    [
        (
            0.109,
            0.483,
            "break-even: a call must yield 4.43 tokens, and one of width 4 yields at most 4: "
            "unreachable, at best 0.90x; below 436 ms a call it would be reachable",
        ),
        (
            0.109,
            0.300,
            "break-even: a call must yield 2.75 tokens: 58.4% of all drafts accepted, or each with "
            "probability 0.75 if independent; at best 1.45x, all accepted",
        ),
        (
            0.1,
            0.08,
            "break-even: a call must yield 0.80 tokens, and every call yields one: it pays "
            "whatever the drafts; at best 5.00x, all accepted",
        ),
    ],
)
def test_the_break_even(t1: float, tv: float, says: str) -> None:
    assert break_even(BreakEven(t1, tv, 4)) == says


def trial(found: Speculated, t1: float, tv: float) -> Trial:
    steps = tuple({"block": t1 * part, "host": t1 * (1 - part)} for part in (0.9, 0.8, 0.7))
    return Trial(Decoded((0,) * 4, steps, 1.0), (tv,), found, 4)


def test_the_notes_counters() -> None:
    found = Speculated([0] * 40, calls=[0.483] * 32, drafted=96, accepted=7)
    assert counters(found) == (
        "verifier_calls=32 drafted=96 accepted=7 fallbacks=0 acceptance=7.3% replayed=0"
    )
    measured = trial(found, 0.109, 0.483)
    assert costs(measured) == (
        "plain: 109 ms a token, 9.17 tok/s (median of 3 steps) · verifier of width 4: 483 ms a "
        "call (1 call)"
    )
    assert outcome(measured) == (
        "speculative: 483 ms a call, 2.52 tok/s, 0.28x plain; predicted 2.52 tok/s (+0.0%)"
    )


def test_a_text_without_drafts_and_a_near_tie() -> None:
    found = Speculated([0] * 5, steps=[0.1] * 4, replays=[0.1] * 4)
    assert counters(found).endswith("fallbacks=4 acceptance=none replayed=4")
    assert outcome(trial(found, 0.1, 0.2)) == (
        "speculative: 5.00 tok/s, 0.50x plain; predicted 5.00 tok/s (+0.0%); without 4 steps "
        "again 1.00x"
    )
