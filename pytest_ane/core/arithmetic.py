"""The arithmetics of the CPU executor, and what their numbers are called."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast, get_args

Arithmetic: TypeAlias = Literal["typed", "ane"]
"""`typed`: float32 inside, rounded as types say; `ane`: as the ANE of M4 and later, where known."""

GENERATION = "h16+"
"""Chips whose arithmetic `ane` is: M4 and later."""
SIMULATED = f"simulated ANE ({GENERATION})"
"""What a number of arithmetic `ane` is called wherever it is shown: it is never measured."""
_OTHERS = r"(ane\W*)?(h1[345]\w*|m[123])"
"""Generations whose sums differ, by their codes or by the chips that people know."""


def read_arithmetic(word: str) -> Arithmetic:
    """`typed` or `ane`.

    Raises:
        ValueError: another word; end of a sentence for people.
    """
    word = word.strip()
    if word in get_args(Arithmetic):
        return cast(Arithmetic, word)
    if re.fullmatch(_OTHERS, word, re.I):
        raise ValueError(
            "h13 to h15 (M1 to M3) sum in other ways than M4 and later, and their rules are not "
            f"known; use 'ane', which is {GENERATION}"
        )
    raise ValueError("must be 'typed' or 'ane'")
