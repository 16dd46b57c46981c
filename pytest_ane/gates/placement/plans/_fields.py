"""Fields of an untrusted file, each checked for its kind; what is wrong is one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pytest_ane.gates.placement.plans._record import Device
from pytest_ane.mlprogram import strict_json
from pytest_ane.mlprogram.errors import PlanError

MOST_NESTED = 64
_PREFIX = re.compile(r"ios\d{1,3}\.")
_MOST_COUNTED = 2**53
_T = TypeVar("_T")

_DEVICES: dict[str, Device] = {
    **dict.fromkeys(("cpu", "mlcpu", "mlcpucomputedevice", "c"), "CPU"),
    **dict.fromkeys(("gpu", "mlgpu", "mlgpucomputedevice", "g"), "GPU"),
    **dict.fromkeys(
        ("ane", "ne", "n", "neuralengine", "mlneuralengine", "mlneuralenginecomputedevice"), "ANE"
    ),
}
_NO_DEVICE = frozenset({"", "?", "unknown", "static", "none", "nil", "null", "unassigned"})


def parse_json(text: str) -> Any:
    """Strict JSON; `PlanError` says what is none, and where."""
    try:
        return strict_json.parse_json(text)
    except ValueError as error:
        raise PlanError(str(error)) from None


def op_type(text: str) -> str:
    """An operation's type without `iosNN.`."""
    return _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text


def device(text: str, where: str) -> Device | None:
    """A device by any of the names tools use; `None` for their words for no device."""
    word = "".join(text.lower().replace("_", " ").split())
    if word in _NO_DEVICE:
        return None
    if word not in _DEVICES:
        raise PlanError(f"{where}: {text!r} is no device that this version knows")
    return _DEVICES[word]


def _typed(kind: type[_T], word: str) -> Callable[[Any, str], _T]:
    def read(value: Any, where: str) -> _T:
        if not isinstance(value, kind):
            raise PlanError(f"{where} is {_kind(value)}, not {word}")
        return value

    return read


mapping: Callable[[Any, str], dict[str, Any]] = _typed(dict, "an object")
sequence: Callable[[Any, str], list[Any]] = _typed(list, "a list")
string = _typed(str, "a text")


def number(value: Any, where: str) -> float:
    """A finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{where} is {_kind(value)}, not a number")
    if not 0 <= value <= 1e300:
        raise PlanError(f"{where} is no finite number from 0 on")
    return float(value)


def count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_COUNTED:
        raise PlanError(f"{where} is no count (a whole number from 0 on)")
    return value


def optional(value: Any, where: str, read: Callable[[Any, str], _T]) -> _T | None:
    return None if value is None else read(value, where)


def rest(fields: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in known}


def _kind(value: Any) -> str:
    words = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "absent" if value is None else words.get(type(value), "a number")
