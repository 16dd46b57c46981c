"""Slices, and tensors joined, cut, repeated, padded and reversed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, case, f32, same

X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


# Bounds, stride and masks (begin, end, squeeze), and the slice they mean; most are coremltools'.
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SLICES: list[Any] = [
    ([1, 1, 1], [2, 2, 2], None, (0, 0, 0), np.s_[1:2, 1:2, 1:2]),
    ([-3, -3, -3], [-1, -1, -1], None, (0, 0, 0), np.s_[-3:-1, -3:-1, -3:-1]),
    ([0, 0, -3], [-1, -2, -2], None, (0, 0, 0), np.s_[0:-1, 0:-2, -3:-2]),
    ([-1, -1, -1], [0, 1, -3], [-2, -1, -3], (0, 0, 0), np.s_[-1:0:-2, -1:1:-1, -1:-3:-3]),
    ([1, 1, 1], [2, 3, 4], [1, 1, 2], (0b101, 0, 0), np.s_[:2, 1:3, :4:2]),
    ([1, 1, 1], [2, 3, 4], [1, 1, 2], (0b101, 0b110, 0), np.s_[:, 1:, :4:2]),
    ([1, 1, 1], [2, 3, 3], [1, 1, 2], (0b001, 0b100, 0b010), np.s_[1::1, 1, :3:2]),
    ([0, 0, 0], [0, 0, 0], [1, 1, 1], (0b111, 0b111, 0), np.s_[:, :, :]),
    ([1, 1, 1], [2, 2, 0], [1, 1, 1], (0, 0, 0b001), np.s_[1:2, 1:2, 1]),
    ([1, 0, 0], [2, 0, 0], None, (0b011, 0b011, 0), np.s_[1:2, ...]),
    ([0, 0, 1], [0, 0, 0], None, (0b110, 0b110, 0b001), np.s_[..., 1]),
    ([1, 2, 3], [0, 0, 0], [-1, -1, -2], (0b111, 0b111, 0), np.s_[::-1, ::-1, ::-2]),
    ([0, 9, -9], [9, 1, 2], [1, -1, 1], (0, 0, 0), np.s_[0:9, 9:1:-1, -9:2]),
    ([5, 1, 0], [0, 2, 1], None, (0b100, 0, 0b100), np.s_[0, 1:2, 0:1]),
    ([0, 2, 0], [1, 2, 4], None, (0, 0, 0), np.s_[0:1, 2:2, 0:4]),
]


def masks(bits: tuple[int, int, int]) -> dict[str, Any]:
    names = ("begin_mask", "end_mask", "squeeze_mask")
    return {n: [bool(b & 1 << i) for i in (2, 1, 0)] for n, b in zip(names, bits, strict=True) if b}


@pytest.mark.parametrize(("begin", "end", "stride", "bits", "meant"), SLICES)
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_all_masks(begin: Any, end: Any, stride: Any, bits: Any, meant: Any, dtype: Any) -> None:
    bounds = {"begin": np.array(begin, dtype), "end": np.array(end, dtype), "stride": stride}
    same("slice_by_index", CUBE[meant], x=CUBE, **bounds, **masks(bits))
    update = -1 - CUBE[meant]
    expected = CUBE.copy()
    expected[meant] = update
    same("slice_update", expected, x=CUBE, update=update, **bounds, **masks(bits))


def test_the_updated_tensor_stays() -> None:
    x = X.copy()
    result = eval_op("slice_update", x=x, update=f32([[0]]), begin=[0, 0], end=[1, 1])
    np.testing.assert_array_equal(x, X)
    assert not np.shares_memory(result, x)


def test_sliding_windows() -> None:
    same("sliding_windows", [[1, 2], [2, 3], [3, 4]], x=f32([1, 2, 3, 4]), axis=0, size=2)
    same("sliding_windows", [[1, 2], [4, 5]], x=f32([1, 2, 3, 4, 5]), axis=-1, size=2, stride=3)
    x = f32([9, 5, 1, 3]).reshape(1, 4, 1, 1)
    expected = f32([[9, 5], [5, 1], [1, 3]]).reshape(1, 3, 2, 1, 1)
    same("sliding_windows", expected, x=x, axis=1, size=2)


A, B = f32([[1, 2], [3, 4]]), f32([[5, 6], [7, 8]])


def test_scalars_and_empty_tensors() -> None:
    none = np.zeros((0, 2), np.float32)
    same("concat", [3, 4], values=(np.int32(3), np.array(4)), axis=0)
    same("concat", A, values=(A, none), axis=0)
    same("concat", A, values=(A,), axis=1)
    same("stack", [3, 4], values=(f32(3), f32(4)), axis=0)
    same("reverse", f32(3), x=f32(3))
    same("reverse", none, x=none, axes=[0])
    same("tile", np.zeros((0, 4)), x=none, reps=[3, 2])
    parts = eval_op("split", x=none, axis=1, num_splits=2)
    assert [p.shape for p in parts] == [(0, 1), (0, 1)]
    a, b = f32([[1, 2], [3, 4], [5, 6]]), f32([[7, 8], [9, 10], [11, 12]])
    same("concat", [[1, 2], [7, 8], [3, 4], [9, 10], [5, 6], [11, 12]], values=(a, b), axis=0,
         interleave=True)  # fmt: skip


def test_split() -> None:
    parts = eval_op("split", x=f32([1, 2, 3, 4]), axis=0, num_splits=2)
    assert [p.tolist() for p in parts] == [[1, 2], [3, 4]]
    parts = eval_op("split", x=f32([1, 2, 3, 4]), axis=-1, split_sizes=[1, 3])
    assert [p.tolist() for p in parts] == [[1], [2, 3, 4]]

    parts = eval_op("split", x=A, axis=-2, split_sizes=np.int32([2]), num_splits=1)
    assert [p.tolist() for p in parts] == [A.tolist()]


def test_reverse_sequence() -> None:
    x = f32([[1, 2, 3, 4, 5, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 0, 0, 0, 0],
             [1, 2, 3, 4, 5, 6, 7, 8]])  # fmt: skip
    expected = [[0, 0, 5, 4, 3, 2, 1, 0], [2, 1, 0, 0, 0, 0, 0, 0], [3, 2, 1, 4, 0, 0, 0, 0],
                [5, 4, 3, 2, 1, 6, 7, 8]]  # fmt: skip
    lengths = np.int32([7, 2, 3, 5])
    same("reverse_sequence", expected, x=x, lengths=lengths, seq_axis=1)
    same("reverse_sequence", np.transpose(expected), x=x.T, lengths=lengths, batch_axis=-1)


@given(arrays(least=1), st.data())
def test_sequences_reversed_one_by_one(x: Any, data: st.DataObject) -> None:
    x = x[None] if x.ndim == 1 else x
    batch, sequence = data.draw(st.permutations(range(x.ndim)))[:2]
    steps = st.integers(0, x.shape[sequence])
    lengths = [data.draw(steps) for _ in range(x.shape[batch])]
    expected = np.moveaxis(x.copy(), (batch, sequence), (0, 1))
    for b, length in enumerate(lengths):
        expected[b, :length] = expected[b, :length][::-1].copy()
    same("reverse_sequence", np.moveaxis(expected, (0, 1), (batch, sequence)), x=x,
         lengths=np.int32(lengths), seq_axis=sequence, batch_axis=batch)  # fmt: skip


PADDED = f32([[1, 2, 3], [4, 5, 6]])


def test_edges() -> None:
    expected = [
        [6, 5, 4, 5, 6, 5, 4],
        [3, 2, 1, 2, 3, 2, 1],
        [6, 5, 4, 5, 6, 5, 4],
        [3, 2, 1, 2, 3, 2, 1],
    ]
    same("pad", expected, x=PADDED, pad=np.array([1, 1, 2, 2], np.int32), mode="reflect")
    expected = [
        [1, 1, 1, 2, 3, 3, 3],
        [1, 1, 1, 2, 3, 3, 3],
        [4, 4, 4, 5, 6, 6, 6],
        [4, 4, 4, 5, 6, 6, 6],
    ]
    same("pad", expected, x=PADDED, pad=[1, 1, 2, 2], mode="replicate")


@settings(max_examples=30)
@given(x=arrays(), data=st.data())
def test_fewer_pairs_are_for_the_last_axes(x: Any, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, 3)] * 2), max_size=x.ndim))
    everywhere = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    same("pad", np.pad(x, everywhere), x=x, pad=np.array(pairs, np.int32).reshape(-1))


LITERALS = [
    case("slice_by_size", [[5, 6], [8, 9]], x=X, begin=[1, 1], size=[2, -1]),
    case("slice_by_size", [[4, 5], [7, 8]], x=X, begin=[-2, -3], size=[2, 2]),
    case("slice_by_size", X[1:, 2:], x=X, begin=[-2, -1], size=[-1, -1]),
    case("slice_by_size", np.empty((0, 3)), x=X, begin=[3, 0], size=[0, 3]),
    case("concat", [[1, 2], [3, 4], [5, 6], [7, 8]], values=(A, B), axis=0),
    case("concat", [[1, 2, 5, 6], [3, 4, 7, 8]], values=(A, B), axis=-1),
    case("concat", [[1, 5, 2, 6], [3, 7, 4, 8]], values=(A, B), axis=1, interleave=True),
    case("concat", [[1, 2], [5, 6], [3, 4], [7, 8]], values=(A, B), axis=-2, interleave=True),
    case("stack", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], values=(A, B), axis=0),
    case("stack", [[[1, 5], [2, 6]], [[3, 7], [4, 8]]], values=(A, B), axis=-1),
    case("tile", [[1, 1], [2, 2], [1, 1], [2, 2]], x=f32([[1], [2]]), reps=[2, 2]),
    case("reverse", [[4, 3], [2, 1]], x=A),
    case("reverse", [[2, 1], [4, 3]], x=A, axes=[-1]),
    case("pad", [[0, 1, 2, 3, 0, 0], [0, 4, 5, 6, 0, 0]], x=PADDED, pad=[1, 2]),
    case("pad", [[9, 9, 9], [1, 2, 3], [4, 5, 6]], x=PADDED, pad=[1, 0, 0, 0], constant_val=9.0),
    case("pad", f32([7, 7, 7]), x=f32([]), pad=[1, 2], constant_val=7.0),
    case("pad", f32(3), x=f32(3), pad=np.array([], np.int32)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)
