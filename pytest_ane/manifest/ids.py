"""Shard ids: their form, and ranges of them."""

from __future__ import annotations

import re

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def is_id(text: str) -> bool:
    """Whether a text may be a shard id: short ASCII, no colon, comma, bracket, slash or space."""
    return len(text) <= 64 and _ID.fullmatch(text) is not None


def expand(term: str) -> list[str]:
    """Ids of a range `L00-L29` or `head.0-head.3`, or the id itself.

    Raises:
        ValueError: neither an id nor a range that counts upwards with one prefix and width.
    """
    term = term.strip()
    first, dash, last = term.rpartition("-")
    low, high = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(last)
    if not (dash and low and high and low[1] == high[1]):
        if not is_id(term):
            raise ValueError(f"{term!r} is neither a shard id nor a range such as L00-L29")
        return [term]
    start, stop = int(low[2]), int(high[2])
    if start > stop or stop - start >= 10_000 or not is_id(first):
        raise ValueError(f"the range {term!r} does not count upwards from an id")
    width = len(low[2])
    return [f"{low[1]}{number:0{width}d}" for number in range(start, stop + 1)]
