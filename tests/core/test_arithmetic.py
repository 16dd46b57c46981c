"""Words for the executor's arithmetics."""

from __future__ import annotations

import pytest

from pytest_ane.core.arithmetic import SIMULATED, read_arithmetic


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


def test_the_label_names_the_generation() -> None:
    assert SIMULATED == "simulated ANE (h16+)"
