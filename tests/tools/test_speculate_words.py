"""Speculative decoding in words."""

from __future__ import annotations

import pytest

from pytest_ane.tools._speculate import BreakEven, Speculated, Trial, break_even, lines


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


def told(counted: Speculated, t1: float, tv: float) -> list[str]:
    plain, _, *others = lines(Trial((0,) * 4, (t1,) * 3, (tv,), counted, 4))
    return [plain, *others]


def test_the_notes_counters() -> None:
    counted = Speculated([0] * 40, calls=[0.483] * 32, drafted=96, accepted=7)
    assert told(counted, 0.109, 0.483) == [
        "plain: 109 ms a token, 9.17 tok/s (median of 3 steps) · verifier of width 4: 483 ms a "
        "call (1 call)",
        "verifier_calls=32 drafted=96 accepted=7 fallbacks=0 acceptance=7.3% replayed=0",
        "speculative: 483 ms a call, 2.52 tok/s, 0.28x plain; predicted 2.52 tok/s (+0.0%)",
    ]


def test_a_text_without_drafts_and_a_near_tie() -> None:
    _, counters, outcome = told(Speculated([0] * 5, steps=[0.1] * 4, replays=[0.1] * 4), 0.1, 0.2)
    assert counters.endswith("fallbacks=4 acceptance=none replayed=4")
    assert outcome == (
        "speculative: 5.00 tok/s, 0.50x plain; predicted 5.00 tok/s (+0.0%); without 4 steps "
        "again 1.00x"
    )
