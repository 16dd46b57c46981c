"""Words for the executor's arithmetics."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from pytest_ane.mlprogram.arithmetic import GRADES, SIMULATED, RuleShares, read_arithmetic
from pytest_ane.mlprogram.executor.ane import Grade


@pytest.mark.parametrize("word", ["typed", "ane", " ane "])
def test_both_words_are_read(word: str) -> None:
    assert read_arithmetic(word) == word.strip()


@pytest.mark.parametrize("word", ["h13", "h14g", "h15", "M1", "m3", "ane:h13", "ane-M2"])
def test_older_generations_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"h13 to h15 \(M1 to M3\) sum in other ways"):
        read_arithmetic(word)


@pytest.mark.parametrize("word", ["", "fp16", "ANE", "h16"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="must be 'typed' or 'ane'"):
        read_arithmetic(word)


def test_words() -> None:
    assert SIMULATED == "simulated ANE (h16+)"
    assert tuple(grade.value for grade in Grade) == GRADES


def test_shares_of_two_programs_add_up() -> None:
    one = RuleShares({"recorded": 3}, {"recorded": 6, "unknown": 2}, ("conv",), {"y": 1})
    both = one + RuleShares({"unknown": 1}, {}, ("conv", "softmax"), {"y": 2, "z": 1})
    assert both.operations == {"recorded": 3, "unknown": 1}
    assert both.unknown == ("conv", "softmax")
    assert both.infinite == {"y": 3, "z": 1}
    assert both.shares_of_products["recorded"] == 0.75
    assert RuleShares().shares_of_products == {}
    adapter = TypeAdapter(RuleShares)
    shares = RuleShares({"recorded": 3}, unknown=("conv",), may_overflow={"y": 1})
    data = adapter.dump_python(shares, mode="json", exclude_defaults=True)
    assert data == {"operations": {"recorded": 3}, "unknown": ["conv"], "may_overflow": {"y": 1}}
    assert adapter.validate_python(data) == shares


@pytest.mark.parametrize("counts", [{"guessed": 1}, {"recorded": -1}])
def test_shares_check_themselves(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"'guessed' is no grade|below 0"):
        RuleShares(counts)
