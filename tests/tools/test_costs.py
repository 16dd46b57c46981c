"""Costs of small programs, and multiply-accumulates as torch counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.shapes import value_shapes
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    DType,
    Named,
    Operation,
    Ref,
    TensorType,
    Value,
)
from pytest_ane.tools._costs import Costs, OpCost, Weights, count_costs, macs
from tests.mlprogram.executor.programs import build
from tests.packages import save_conv


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "conv.mlpackage"
    save_conv(path)
    return path


def ops(costs: Costs) -> dict[str, Any]:
    return {op.name: op for op in costs.operations}


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_convolution_at_any_t(conv: Path, tokens: int) -> None:
    costs = count_costs(read_model(conv), tokens)
    assert costs.tokens == tokens
    assert costs.macs == 8 * 16 * tokens
    assert costs.weights == 2 * (8 * 16 + 16)
    assert (costs.inputs, costs.outputs) == (2 * 8 * tokens, 2 * 16 * tokens)
    assert (costs.states, costs.held) == (0, 0)
    assert costs.padded(32) == 32 * costs.macs
    assert value_shapes(read_model(conv, weights=False), tokens)["x"] == (1, 8, tokens, 1)


def test_weights_need_not_be_there_and_the_compiled_model_costs_the_same(
    conv: Path, tmp_path: Path
) -> None:
    whole = read_model(conv)
    compiled = write_compiled(whole, tmp_path / "conv.mlmodelc")
    for weights in (compiled / "weights").iterdir():
        weights.unlink()
    bare = read_model(compiled, weights=False)
    assert count_costs(bare, 2) == count_costs(whole, 2)


def test_another_t_than_the_program_takes_is_refused(conv: Path) -> None:
    with pytest.raises(ExecutionError, match="T is 9, and input 'x' takes 1 to 4"):
        count_costs(read_model(conv), 9)


def test_a_weight_counts_for_its_first_reader_and_gathered_rows_alone(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    table = np.ones((64, 32), np.float32)

    def body(x: Any, i: Any) -> Any:
        weight = mb.const(val=table, name="table")
        rows = mb.gather(x=mb.const(val=table + 1, name="rows"), indices=i, axis=0, name="some")
        first = mb.linear(x=x, weight=weight, name="first")
        turned = mb.matmul(x=first, y=weight, name="second")
        return mb.add(x=turned, y=rows, name="sum")

    specs = [mb.TensorSpec((2, 32)), mb.TensorSpec((2,), dtype=types.int32)]
    costs = count_costs(read_model(build(tmp_path / "m.mlpackage", specs, body)), 7)
    assert costs.tokens is None
    by_name = ops(costs)
    assert by_name["first"].macs == by_name["second"].macs == 2 * 64 * 32
    bias = 4 * 64
    assert (by_name["first"].weights, by_name["second"].weights) == (4 * 64 * 32 + bias, 0)
    assert by_name["some"].weights == 4 * 2 * 32
    assert by_name["sum"].macs == 0


def test_a_state_is_read_once_and_written_once(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(cache: Any, x: Any) -> Any:
        old = mb.read_state(input=cache)
        new = mb.add(x=old, y=x)
        kept = mb.coreml_update_state(state=cache, value=new)
        return mb.matmul(x=kept, y=x, transpose_y=True)

    specs = [mb.StateTensorSpec((4, 8), dtype=types.fp16), mb.TensorSpec((4, 8), dtype=types.fp16)]
    costs = count_costs(read_model(build(tmp_path / "m.mlpackage", specs, body)))
    assert costs.held == 2 * 4 * 8
    assert costs.states == 2 * costs.held
    assert costs.macs == 4 * 4 * 8
    assert (costs.inputs, costs.outputs) == (2 * 4 * 8, 2 * 4 * 4)


def test_only_the_rows_that_are_put_into_a_state_are_written(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(cache: Any, x: Any) -> Any:
        old = mb.read_state(input=cache)
        new = mb.slice_update(
            x=old, update=x, begin=np.array([2, 0], np.int32), end=np.array([3, 8], np.int32)
        )
        return mb.relu(x=mb.coreml_update_state(state=cache, value=new))

    specs = [mb.StateTensorSpec((4, 8), dtype=types.fp16), mb.TensorSpec((1, 8), dtype=types.fp16)]
    costs = count_costs(read_model(build(tmp_path / "m.mlpackage", specs, body)))
    assert costs.states == costs.held + 2 * 8


def test_control_flow_is_refused(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        return mb.cond(
            pred=mb.greater(x=mb.reduce_max(x=x), y=0.0),
            _true_fn=lambda: mb.exp(x=x),
            _false_fn=lambda: mb.abs(x=x),
        )

    model = read_model(build(tmp_path / "m.mlpackage", [mb.TensorSpec((3,))], body))
    with pytest.raises(ExecutionError, match="is a cond: what it costs depends on values"):
        count_costs(model)


WEIGHT = TensorType(DType.FP16, (32, 64))


def blob(dtype: DType, *shape: int, at: int = 64) -> Value:
    return Value(TensorType(dtype, shape), Blob("@model_path/weights/weight.bin", at))


def op(kind: str, name: str, **inputs: Argument) -> Operation:
    return Operation(kind, {k: (v,) for k, v in inputs.items()}, (Named(name, WEIGHT),))


def const(name: str, value: Value) -> Operation:
    return Operation("const", {}, (Named(name, value.type),), {"val": value})


def test_a_palette_has_indices_and_a_table() -> None:
    weights = Weights()
    weights.fold(const("indices", blob(DType.UINT4, 32, 64)))
    weights.fold(const("table", blob(DType.FP16, 1, 1, 16, 1, at=2048)))
    weights.fold(op("constexpr_lut_to_dense", "w", indices=Ref("indices"), lut=Ref("table")))
    assert weights.take(op("conv", "y", x=Ref("x"), weight=Ref("w"))) == (
        32 * 64 // 2 + 2 * 16, 32 * 64,
    )  # fmt: skip


def test_a_scale_in_the_program_counts_for_what_it_decompresses_alone() -> None:
    scale = Value(TensorType(DType.FP16, ()), np.float16(0.5))
    weights = Weights()
    quantized = blob(DType.INT8, 32, 64)
    weights.fold(op("constexpr_blockwise_shift_scale", "w", data=quantized, scale=scale))
    assert weights.take(op("mul", "y", x=Ref("w"), y=scale)) == (32 * 64 + 2, 32 * 64)


def test_what_follows_from_a_weight_is_read_as_the_weight() -> None:
    weights = Weights()
    weights.fold(const("w", blob(DType.FP16, 32, 64)))
    weights.fold(op("transpose", "turned", x=Ref("w")))
    read, _ = weights.take(op("matmul", "y", x=Ref("x"), y=Ref("turned")))
    assert read == 2 * 32 * 64
    assert weights.take(op("matmul", "z", x=Ref("x"), y=Ref("w"))) == (0, 0)


@pytest.mark.parametrize(("lanes", "macs"), [(1, 96), (2, 128), (3, 96), (4, 128), (32, 1024)])
def test_the_last_axis_is_padded(lanes: int, macs: int) -> None:
    conv = OpCost("y", "conv", macs=96, width=3, weights=40)
    write = OpCost("write_state", "write_state", states=64)
    costs = Costs(tokens=3, operations=(conv, write), inputs=6, outputs=10, held=64)
    assert conv.padded(lanes) == costs.padded(lanes) == macs
    assert (costs.macs, costs.weights, costs.states) == (96, 40, 64)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("op", "parameters", "result", "expected"),
    [
        ("conv", {"x": ones(1, 8, 4, 1), "weight": ones(16, 8, 1, 1)}, (1, 16, 4, 1), 512),
        ("conv", {"x": ones(1, 8, 5, 1), "weight": ones(8, 1, 2, 1)}, (1, 8, 4, 1), 64),
        ("conv_transpose", {"x": ones(1, 3, 5), "weight": ones(3, 4, 2)}, (1, 4, 6), 120),
        ("linear", {"x": ones(2, 3), "weight": ones(5, 3)}, (2, 5), 30),
        ("matmul", {"x": ones(2, 3), "y": ones(3, 4)}, (2, 4), 24),
        ("matmul", {"x": ones(3, 2), "y": ones(3, 4), "transpose_x": True}, (2, 4), 24),
        ("matmul", {"x": ones(3), "y": ones(3, 4), "transpose_x": True}, (4,), 12),
        (
            "einsum",
            {"values": [ones(1, 2, 3, 4), ones(1, 4, 3, 5)], "equation": "nchw, nwhu -> nchu"},
            (1, 2, 3, 5),
            120,
        ),
        (
            "scaled_dot_product_attention",
            {"query": ones(1, 2, 3, 8), "key": ones(1, 2, 5, 8), "value": ones(1, 2, 5, 4)},
            (1, 2, 3, 4),
            2 * 3 * 5 * (8 + 4),
        ),
        (
            "lstm",
            {"x": ones(7, 2, 3), "weight_ih": ones(16, 3), "weight_hh": ones(16, 4), "bias": None},
            (7, 2, 4),
            7 * 2 * (16 * 3 + 16 * 4),
        ),
        ("softmax", {"x": ones(9, 9)}, (9, 9), 0),
    ],
)
def test_examples(
    op: str, parameters: dict[str, Any], result: tuple[int, ...], expected: int
) -> None:
    assert macs(op, parameters, result) == expected
