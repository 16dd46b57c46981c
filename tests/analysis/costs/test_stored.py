"""Bytes of weights by their first reader, from hand-written records."""

from __future__ import annotations

import numpy as np

from pytest_ane.analysis.costs.stored import Size, Stored
from pytest_ane.mil.records import Argument, Blob, DType, Named, Operation, Ref, TensorType, Value

WEIGHT = TensorType(DType.FP16, (32, 64))


def blob(dtype: DType, *shape: int, at: int = 64) -> Value:
    return Value(TensorType(dtype, shape), Blob("@model_path/weights/weight.bin", at))


def op(kind: str, name: str, **inputs: Argument) -> Operation:
    return Operation(kind, {k: (v,) for k, v in inputs.items()}, (Named(name, WEIGHT),))


def const(name: str, value: Value) -> Operation:
    return Operation("const", {}, (Named(name, value.type),), {"val": value})


def test_a_palette_has_indices_and_a_table() -> None:
    stored = Stored()
    stored.fold(const("indices", blob(DType.UINT4, 32, 64)))
    stored.fold(const("table", blob(DType.FP16, 1, 1, 16, 1, at=2048)))
    stored.fold(op("constexpr_lut_to_dense", "w", indices=Ref("indices"), lut=Ref("table")))
    assert stored.take(op("conv", "y", x=Ref("x"), weight=Ref("w"))) == (
        Size(32 * 64 // 2 + 2 * 16, 32 * 64)
    )


def test_a_scale_in_the_program_counts_for_what_it_decompresses_alone() -> None:
    scale = Value(TensorType(DType.FP16, ()), np.float16(0.5))
    stored = Stored()
    quantized = blob(DType.INT8, 32, 64)
    stored.fold(op("constexpr_blockwise_shift_scale", "w", data=quantized, scale=scale))
    assert stored.take(op("mul", "y", x=Ref("w"), y=scale)) == Size(32 * 64 + 2, 32 * 64)


def test_what_follows_from_a_weight_is_read_as_the_weight() -> None:
    stored = Stored()
    stored.fold(const("w", blob(DType.FP16, 32, 64)))
    stored.fold(op("transpose", "turned", x=Ref("w")))
    assert stored.take(op("matmul", "y", x=Ref("x"), y=Ref("turned"))).stored == 2 * 32 * 64
    assert stored.take(op("matmul", "z", x=Ref("x"), y=Ref("w"))) == Size(0, 0)


def test_what_is_computed_has_no_weights() -> None:
    assert Stored().take(op("add", "y", x=Ref("a"), y=Ref("b"))) == Size(0, 0)
