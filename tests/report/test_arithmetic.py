"""Lines on the rules by which a result in the ANE's arithmetic was computed."""

from __future__ import annotations

import pytest

from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.report.arithmetic import rules_lines


def test_both_shares_and_the_kinds_without_a_rule() -> None:
    shares = RuleShares(
        {"recorded": 31, "fitted": 4, "unknown": 15},
        {"recorded": 91, "unknown": 9},
        ("conv", "reduce_mean", "softmax"),
    )
    assert next(rules_lines(shares)) == (
        "simulated ANE (h16+): multiply-accumulates by rules 91% recorded, 9% unknown; operations "
        "62% recorded, 8% fitted, 30% unknown (conv, reduce_mean, softmax)"
    )


@pytest.mark.parametrize(
    ("operations", "text"),
    [({}, "no operation computed anything"),
     ({"fitted": 2}, "operations by rules 100% fitted"),
     ({"recorded": 9996, "unknown": 4}, "operations by rules 99.96% recorded, 0.04% unknown")],
)  # fmt: skip
def test_without_products(operations: dict[str, int], text: str) -> None:
    assert next(rules_lines(RuleShares(operations))) == f"simulated ANE (h16+): {text}"


def test_what_overflows_is_named() -> None:
    shares = RuleShares(
        {"recorded": 1}, {}, (), dict.fromkeys("abcd", 1) | {"down": 1200}, {"up": 2}
    )
    assert list(rules_lines(shares))[1:] == [
        "overflowed to infinity: 1,200 outputs of down, 1 output of a, 1 output of b and 2 more",
        "may overflow, by the order of summation: 2 outputs of up",
    ]
