"""Measurements as JSON data and back: whatever a file says, a judge can read it or it is refused.

The records check themselves; here only types are held against them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from pytest_ane.core.errors import EvidenceError
from pytest_ane.core.verdict import Gate
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement.plans import Plan

Measurement: TypeAlias = Plan | CompressionMeasurement | Fidelity | Behaviour

KINDS: dict[Gate, type[Any]] = {
    "placement": Plan,
    "compression": CompressionMeasurement,
    "fidelity": Fidelity,
    "behaviour": Behaviour,
}


def to_data(measurement: Measurement) -> dict[str, Any]:
    """JSON data of a measurement without its provenance; what has its default value is left out."""
    made = _adapter(_gate(measurement)).dump_python(measurement, mode="json", exclude_defaults=True)
    made.pop("provenance", None)
    spelled: dict[str, Any] = _spelled(made)
    return spelled


def from_data(gate: Gate, data: Mapping[str, Any], provenance: Mapping[str, str]) -> Measurement:
    """The measurement that `to_data` made data of; unknown fields are ignored.

    Raises:
        EvidenceError: a field is missing, of another kind, or contradicts another.
    """
    try:
        found: Measurement = _adapter(gate).validate_python({**data, "provenance": provenance})
        return found
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        says = first["msg"].removeprefix("Value error, ")
        raise EvidenceError(f"{_where(first['loc'])}: {says[:1].lower()}{says[1:]}") from None


def _gate(measurement: Measurement) -> Gate:
    return next(gate for gate, kind in KINDS.items() if isinstance(measurement, kind))


@cache
def _adapter(gate: Gate) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[gate])


def _spelled(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become words, which pydantic reads as numbers."""
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelled(one) for one in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _where(path: tuple[int | str, ...]) -> str:
    """`comparisons[0].cosines`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(["measurement", *parts])
