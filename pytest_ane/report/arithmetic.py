"""What a result in the ANE's arithmetic says of its rules, and of sums that overflowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap

from pytest_ane.gates.verdict import counted, some
from pytest_ane.mlprogram.arithmetic import GRADES, SIMULATED, RuleShares

_MOST_KINDS = 6
_MOST_NAMES = 3


def rules_lines(shares: RuleShares) -> Iterator[str]:
    """By which rules a result was computed, and a line each for what overflowed and what may."""
    if not shares.operations:
        yield f"{SIMULATED}: no operation computed anything"
        return
    parts = []
    if shares.products:
        parts.append(f"multiply-accumulates by rules {_graded(shares.shares_of_products)}")
    by = "" if parts else "by rules "
    parts.append(f"operations {by}{_graded(shares.shares_of_operations)}")
    kinds = f" ({some(shares.unknown, _MOST_KINDS)})" if shares.unknown else ""
    yield f"{SIMULATED}: {'; '.join(parts)}{kinds}"
    if shares.infinite:
        yield f"overflowed to infinity: {_outputs(shares.infinite)}"
    if shares.may_overflow:
        yield f"may overflow, by the order of summation: {_outputs(shares.may_overflow)}"


def wrapped(lines: Iterable[str], width: int = 79) -> Iterator[str]:
    """Lines broken at spaces, what is continued indented under its beginning."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from wrap(
            line, max(width, 40), subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _graded(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{_percent(shares[grade])} {grade}" for grade in GRADES if shares[grade])


def _percent(share: float) -> str:
    texts = [f"{100 * share:.{decimals}f}" for decimals in range(5)]
    return next((text for text in texts if 0 < float(text) < 100), texts[0]) + "%"


def _outputs(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return some((f"{counted(count, 'output')} of {op}" for op, count in ranked), _MOST_NAMES)
