"""Limits of the units, as Core ML's plans of single operations have them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.gates.placement.segmenter import Op, Tensor
from pytest_ane.gates.placement.segmenter._costs import Backend, is_measured, obstacle


def op(
    kind: str, *shapes: tuple[int, ...], dtypes: tuple[str, str] = ("fp16", "fp16"), **fields: Any
) -> Op:
    inputs = tuple(Tensor(shape, dtypes[0]) for shape in shapes or ((1, 64, 32, 32),))
    return Op(kind, kind, inputs, (Tensor((1, 64, 32, 32), dtypes[1]),), **fields)


def test_constant_indices_may_be_int32_and_an_operation_without_a_plan_is_told() -> None:
    table, indices = Tensor((1, 64, 32, 32)), Tensor((32,), "int32", constant=True)
    assert obstacle(Op("g", "gather", (table, indices), (table,)), "ane") == ""
    assert not is_measured(op("read_state"))
    assert is_measured(op("relu"))
    assert is_measured(op("cumsum"))


@pytest.mark.parametrize(("backend", "kind"), [("gpu", "resize"), ("bnns", "band_part")])
def test_other_backends_lack_a_few(backend: Backend, kind: str) -> None:
    assert kind in obstacle(op(kind), backend)
