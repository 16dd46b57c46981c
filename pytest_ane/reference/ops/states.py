"""States: read and written by reference (iOS 18)."""

from __future__ import annotations

from typing import Any

from pytest_ane.reference.registry import register
from pytest_ane.reference.state import State


@register("read_state", opset="iOS18", moves=True)
def read_state(input: State) -> Any:
    """The state's value as it is now."""
    return input.read()


@register("write_state", opset="iOS18", moves=True)
def write_state(input: State, data: Any) -> tuple[()]:
    """Another value for the state; the operation has no result."""
    input.take(data)
    return ()
