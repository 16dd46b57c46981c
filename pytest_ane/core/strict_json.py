"""JSON of strangers, read strictly."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def parse_json(text: str) -> Any:
    """JSON without NaN, infinities, repeated keys or endless nesting.

    Raises:
        ValueError: it is none; says where.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except _Refused:
        raise
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the JSON is damaged ({error})") from None


class _Refused(ValueError):
    """Valid JSON that is not strict."""


def _no_constant(text: str) -> Any:
    raise _Refused(f"the JSON holds {text}, which is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _Refused(f"the JSON has {twice!r} twice in one object")
    return made
