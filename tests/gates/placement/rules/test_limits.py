"""Rules and segmenter agree on what the ANE takes, op by op."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.gates.placement.segmenter.program import function_ops
from pytest_ane.gates.placement.segmenter.support import obstacle
from pytest_ane.mlprogram.records import DType, Operation, TensorType, ValueType
from tests.gates.placement.programs import foretell, full, function, half, ints, op, value


def conv(*kernel: int) -> Operation:
    weight = value(np.zeros((2, 2, *kernel), np.float16))
    return op("conv", "y", half(1, 2, 1, 64), x="x", weight=weight)


def pool(*sizes: int) -> Operation:
    return op("max_pool", "y", half(1, 2, 1, 64), x="x", kernel_sizes=value(sizes))


def product(depth: int) -> tuple[Operation, dict[str, ValueType]]:
    made = op("matmul", "y", half(2, 2), x="a", y="b")
    return made, {"a": half(2, depth), "b": half(depth, 2)}


X = {"x": half(1, 2, 1, 64), "n": ints(2)}
BOOL = TensorType(DType.BOOL, (1, 64))
TAKEN = [
    *(conv(1, 15), conv(31, 1), conv(16, 16), pool(9, 8), pool(2, 32)),
    op("relu", "y", half(1, 2, 1, 64), x="x"),
    op("relu", "y", half(65_536, 2), x="x"),
    op("logical_and", "y", BOOL, x="x", y="x"),
    op("affine", "y", half(1, 2, 1, 64), x="x"),
    op("resample", "y", half(1, 2, 1, 64), x="x"),
    op("topk", "y", half(1, 2, 1, 4), x="x"),
    op("gather", "y", half(1, 2, 1, 2), x="x", indices=value([0, 3])),
    op("gather_nd", "y", half(2), x="x", indices="n"),
    op("slice_by_size", "y", half(1, 1), x="x", begin=value([0, 0]), size=value([1, 1])),
    op("cast", "c", full(1, 2, 1, 64), x="y"),
]
OFF = [
    *(conv(1, 16), conv(32, 1), conv(17, 17), pool(2, 9), pool(2, 33)),
    op("relu", "y", half(1, 65_537, 1, 2), x="x"),
    op("relu", "y", half(1, 1, 1, 1, 1, 2), x="x"),
    op("add", "y", ints(2), x="n", y=value([1, 1])),
    op("mul", "y", full(1, 2, 1, 64), x="x", y="x"),
    op("gather", "y", half(1, 2, 1, 2), x="x", indices="n"),
    op("slice_by_size", "y", half(1, 1), x="x", begin="n", size=value([1, 1])),
    *(
        op(kind, "y", half(1, 64), x="x")
        for kind in ("argsort", "crop_resize", "cumsum", "lstm", "reduce_argmax", "scatter", "tan")
    ),
]


def verdicts(made: Operation, inputs: dict[str, ValueType]) -> tuple[bool, bool]:
    """Whether the rules, and whether the segmenter, keep an operation off the ANE."""
    ruled = any(foretell(made, inputs=inputs).of("ineligible"))
    (seen,) = function_ops(function(made, inputs=inputs))
    return ruled, bool(obstacle(seen, "ane"))


@pytest.mark.parametrize("made", TAKEN)
def test_both_take_it(made: Operation) -> None:
    assert verdicts(made, X | {"y": half(1, 2, 1, 64)}) == (False, False)


@pytest.mark.parametrize("made", OFF)
def test_both_keep_it_off(made: Operation) -> None:
    assert verdicts(made, dict(X)) == (True, True)


@pytest.mark.parametrize(("depth", "off"), [(32_768, False), (32_769, True)])
def test_both_have_one_depth(depth: int, off: bool) -> None:
    assert verdicts(*product(depth)) == (off, off)
