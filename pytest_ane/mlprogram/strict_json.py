"""Strict JSON: no NaN, no infinities, no repeated keys."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

_AS_THEY_ARE = frozenset({str, int, bool, NoneType})


def parse_json(text: str) -> Any:
    """JSON without NaN, infinities, repeated keys or endless nesting; `ValueError` says where."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except _Refused:
        raise
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the JSON is damaged ({error})") from None


def strict(value: Any) -> Any:
    """Data that strict JSON can hold; what JSON has no form for becomes text.

    NaN and infinities become `"NaN"`, `"Infinity"` and `"-Infinity"`, which pydantic reads as
    numbers; tuples become lists, and dataclasses objects.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if is_dataclass(value):
        return {field.name: strict(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, str | int | float | None) else str(value)


def first_error(error: ValidationError) -> str:
    """`devices[0].peak: field required`, the first of what is wrong with a record."""
    first = error.errors(include_url=False, include_input=False)[0]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    where, says = "".join(parts).lstrip("."), first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: {says}" if where else says


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
