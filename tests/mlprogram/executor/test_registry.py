"""Which function computes which operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import eval_op, register
from pytest_ane.mlprogram.executor._registry import lookup, names


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An operation of our own that a later opset changed; gone after the test."""
    names()
    from pytest_ane.mlprogram.executor import _registry as registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @register("twice")
    def early(x: Any) -> Any:
        return 2 * x

    @register("twice", opset="iOS17")
    def late(x: Any) -> Any:
        return x + x + 1

    return "twice"


def test_a_later_opset_overrides(twice: str) -> None:
    x = np.float32(3)
    results = [eval_op(twice, opset=o, x=x) for o in ("iOS15", "iOS16", "iOS17", "iOS18")]
    assert results == [6, 6, 7, 7]


def test_opsets_as_functions_name_them(twice: str) -> None:
    results = [lookup(twice, f"CoreML{n}").compute(3) for n in (5, 6, 7, 8, 9)]
    assert results == [6, 6, 7, 7, 7]


def test_an_operation_newer_than_the_opset_is_missing() -> None:
    assert lookup("constexpr_blockwise_shift_scale", "iOS18")
    with pytest.raises(ExecutionError, match="not implemented for opset iOS17"):
        lookup("constexpr_blockwise_shift_scale", "iOS17")


def test_a_missing_operation_says_where_what_exists_and_how_to_add_one() -> None:
    with pytest.raises(ExecutionError) as caught:
        lookup("frobnicate", "CoreML8", "model: y: ")
    text = str(caught.value)
    assert text.startswith("model: y: operation 'frobnicate' is not implemented for opset CoreML8;")
    assert " abs, acos, add, " in text
    assert text.endswith("Add it with @pytest_ane.mlprogram.executor.register('frobnicate').")


def test_an_opset_nobody_knows() -> None:
    with pytest.raises(ValueError, match="unknown opset 'iOS3'"):
        register("x", opset="iOS3")


@pytest.mark.parametrize("opset", ["ios15", "iOS99", "banana", None, "CoreML"])
def test_an_opset_that_there_is_not(opset: str) -> None:
    with pytest.raises(ExecutionError, match=f"unknown opset {opset!r}; there are: iOS15, iOS16"):
        eval_op("relu", x=np.float32([1]), opset=opset)
