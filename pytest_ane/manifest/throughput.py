"""The policy of throughput: how much slower than its baseline a shard or a model may be."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from pytest_ane.manifest.base import Record

_PERCENT = r"(\d{1,2}(?:\.\d{1,6})?)\s*%"
CALIBRATED: Literal["calibrated"] = "calibrated"


def regression(value: object) -> float | Literal["calibrated"]:
    """The share of `"5%"` or `0.05`; `"calibrated"` as it is.

    Raises:
        ValueError: neither, or not from 0 to below 1.
    """
    if value == CALIBRATED:
        return CALIBRATED
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    match = re.fullmatch(_PERCENT, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            'must be a share such as "5%" or 0.05, less than all of it, or "calibrated"'
        )
    return float(Decimal(match[1]) / 100)


Regression: TypeAlias = Annotated[
    float | Literal["calibrated"],
    PlainValidator(regression),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "pattern": f"^({_PERCENT}|{CALIBRATED})$"},
            ]
        }
    ),
]


class ThroughputPolicy(Record):
    """How fast. It is measured here and now: recorded evidence never counts."""

    max_regression: Regression | None = None
    """How much less than the baseline tok/s may be, and how much more seconds a load may take:
    `"5%"`, a share, or `"calibrated"`, what `pytest-ane calibrate` found to be noise. Given, every
    benchmark is compared; absent, only with `--benchmark-compare`."""
    min_tok_s: Annotated[float, Field(gt=0)] | None = None
    """Fewest tokens a second, of the whole chain or of a shard's calls."""
