"""Limits of the units, as Core ML's plans of single operations have them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.gates.placement.segmenter import Op, Tensor
from pytest_ane.gates.placement.segmenter._costs import is_measured, obstacle
from pytest_ane.gates.placement.segmenter._records import Backend


def op(
    kind: str, *shapes: tuple[int, ...], dtypes: tuple[str, str] = ("fp16", "fp16"), **fields: Any
) -> Op:
    inputs = tuple(Tensor(shape, dtypes[0]) for shape in shapes or ((1, 64, 32, 32),))
    return Op(kind, kind, inputs, (Tensor((1, 64, 32, 32), dtypes[1]),), **fields)


def conv(*kernel: int) -> Op:
    return op("conv", weight=Tensor((64, 64, *kernel)))


def pool(*kernel: int) -> Op:
    return op("max_pool", attributes={"kernel_sizes": kernel})


def factors(depth: int) -> Op:
    return op("matmul", (1, 16, depth), (1, depth, 16))


TAKEN = [
    *(op(kind) for kind in ("relu", "topk", "logical_and", "affine", "resample", "gather_nd")),
    # No plan has it; programs with it are wholly on the ANE, or compile for it (A19 Pro, M5 Pro).
    op("einsum"),
    op("cast", dtypes=("fp32", "fp16")),
    op("cast", dtypes=("bool", "fp16")),
    op("cast", dtypes=("fp16", "int8")),
    op("relu", (1, 65536, 1, 1)),
    op("relu", (1, 4, 16, 32, 32)),
    factors(32768),
    *(conv(*kernel) for kernel in ((15,), (1, 15), (31, 1), (16, 16), (3, 3, 3))),
    *(pool(*kernel) for kernel in ((8, 8), (9, 1), (32, 32))),
    op("gather"),
]
REFUSED = [
    (op("cumsum"), "cumsum: the ANE does not have it"),
    (op("lstm"), "lstm: the ANE does not have it"),
    (op("while_loop"), "while_loop: the ANE has no control flow"),
    (op("add", dtypes=("int32", "int32")), "add of int32"),
    (op("cast", dtypes=("fp16", "int32")), "cast of int32"),
    (op("relu", dtypes=("fp32", "fp32")), "relu of fp32"),
    (op("gather", attributes={"runtime_indices": (1,)}), "gather with indices computed"),
    (op("slice_by_size", attributes={"runtime_begin": (1,)}), "slice_by_size with a begin"),
    (op("relu", (1, 65537, 1, 1)), "an axis of 65,537; the ANE takes 65,536"),
    (op("relu", (1, 1, 1, 1, 1, 1)), "a tensor of rank 6"),
    (factors(40000), "matmul over 40,000 elements; the ANE takes 32,768"),
    (conv(1, 16), "a kernel of 1x16; the ANE takes 15 wide"),
    (conv(16), "a kernel of 1x16"),
    (conv(32, 1), "a kernel of 32x1; the ANE takes 31 high"),
    (conv(17, 17), "a kernel of 17x17; the ANE takes 16 on a side"),
    (pool(9, 9), "max_pool 9 wide; the ANE takes 8, or 32"),
    (pool(1, 9), "max_pool 9 wide"),
]


def _numbered(operations: list[Op]) -> list[str]:
    return [f"{operation.kind}-{number}" for number, operation in enumerate(operations)]


@pytest.mark.parametrize("operation", TAKEN, ids=_numbered(TAKEN))
def test_the_ane_takes(operation: Op) -> None:
    assert obstacle(operation, "ane") == ""


@pytest.mark.parametrize(
    ("operation", "limit"), REFUSED, ids=_numbered([operation for operation, _ in REFUSED])
)
def test_the_ane_refuses(operation: Op, limit: str) -> None:
    assert obstacle(operation, "ane").startswith(limit)
    assert obstacle(operation, "classic") == ""


def test_constant_indices_may_be_int32_and_an_operation_without_a_plan_is_told() -> None:
    table, indices = Tensor((1, 64, 32, 32)), Tensor((32,), "int32", constant=True)
    assert obstacle(Op("g", "gather", (table, indices), (table,)), "ane") == ""
    assert not is_measured(op("read_state"))
    assert is_measured(op("relu"))
    assert is_measured(op("cumsum"))


@pytest.mark.parametrize(("backend", "kind"), [("gpu", "resize"), ("bnns", "band_part")])
def test_other_backends_lack_a_few(backend: Backend, kind: str) -> None:
    assert kind in obstacle(op(kind), backend)
