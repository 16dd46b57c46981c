"""What running a program may take: memory, time, and turns of its loops.

Each operation's result is measured before it is computed, from its parameters, and added to what
the program's values hold at that moment. `RULES` has the operations whose results may be larger
than any of their operands; of all others, the largest operand is the measure. An axis without
elements counts as one of length 1: a tensor `[0, 2^40]` is empty, but its sums along the first axis
are not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.mlprogram.errors import BudgetError
from pytest_ane.mlprogram.executor.ops.elementwise import BROADCASTING
from pytest_ane.mlprogram.executor.ops.lists import State, TensorList
from pytest_ane.mlprogram.executor.ops.spatial import extent, integers, ints, padding
from pytest_ane.mlprogram.memory import bytes_text, free_memory

SECONDS = 600.0
"""Time of one call of a program by default."""
_PER_ARRAY = 4096
"""Bytes that an array takes besides its elements: large ones begin a page of memory."""
MOST_TURNS = 1_000_000
"""Turns that the loops of one call may take together."""


@dataclass(frozen=True)
class Budget:
    """Limits of one call of a program: bytes of all its values, seconds, turns of all its loops.

    Bytes are half of what is free where they are None.
    """

    memory: int | None = None
    seconds: float = SECONDS
    turns: int = MOST_TURNS

    def settled(self) -> Budget:
        """The same, with a number of bytes."""
        if self.memory is not None:
            return self
        return Budget(free_memory() // 2, self.seconds, self.turns)

    def check_tensor(
        self, what: str, shape: Iterable[int], itemsize: int = 4, words: int = 1
    ) -> None:
        """Refuse a tensor that is about to be made, such as an input or a state."""
        size = itemsize * math.prod(shape)
        memory = self.settled().memory or 0
        if size * words > memory:
            raise _memory_error(what, size, words, memory)


_budget = Budget()


@contextmanager
def process_budget(memory: int | None = None, seconds: float | None = None) -> Iterator[None]:
    """Set the budget of all sessions that are opened meanwhile without one of their own."""
    global _budget
    before, _budget = _budget, Budget(memory, SECONDS if seconds is None else seconds)
    try:
        yield
    finally:
        _budget = before


def current_budget() -> Budget:
    """The budget of this process, with a number of bytes."""
    return _budget.settled()


class Meter:
    """What one call takes, held against a settled budget.

    `values` yields what the program holds at the moment; of several `calls` at once each has the
    budget's time.
    """

    def __init__(self, budget: Budget, values: Callable[[], Iterable[Any]], calls: int = 1) -> None:
        self._budget, self._values = budget, values
        self._memory = budget.memory or 0
        self._end = time.monotonic() + budget.seconds * calls
        self._turns = self._most = budget.turns * calls
        self._held = held_bytes(values())

    def admit(self, what: str, op: str, parameters: Mapping[str, Any], itemsize: int) -> None:
        """Hold an operation against the budget before it is computed."""
        self._check_time(what)
        size = result_elements(op, parameters) * itemsize
        words = WORDS.get(op, USUAL_WORDS)
        if self._held + size * words <= self._memory:
            return
        # Results were added up, whether they are new memory or views, and held still or not.
        self._held = held_bytes(self._values())
        if self._held + size * words > self._memory:
            raise _memory_error(what, size, words, self._memory, self._held)

    def add(self, results: Iterable[Any]) -> None:
        """Count results that the program holds from now on."""
        self._held += sum(map(_own_bytes, results))

    def turn(self, what: str) -> None:
        """Count a turn of a loop."""
        self._turns -= 1
        if self._turns < 0:
            fix = "its condition may never become false"
            raise BudgetError(f"{what} is still running after {self._most:,} turns; {fix}.")
        self._check_time(what)

    def _check_time(self, what: str) -> None:
        if time.monotonic() > self._end:
            seconds = f"{self._budget.seconds:g} s, the budget of a call"
            raise BudgetError(f"{what} is still running after {seconds}; raise --ane-time.")


def held_bytes(values: Iterable[Any]) -> int:
    """Bytes of all memory that values refer to; what several share counts once."""
    owners: dict[int, int] = {}
    pending = list(values)
    for value in pending:  # Grows.
        if isinstance(value, TensorList):
            owners[id(value.elements)] = _own_bytes(value)
            pending += value.elements
        elif isinstance(value, State):
            pending.append(value.read())
        elif isinstance(value, np.ndarray):
            owner = value
            while (value := getattr(value, "base", None)) is not None:
                owner = value if isinstance(value, np.ndarray) else owner
            owners[id(owner)] = _own_bytes(owner)
    return sum(owners.values())


def _own_bytes(value: Any) -> int:
    if isinstance(value, TensorList):
        return 8 * len(value.elements)
    return value.nbytes + _PER_ARRAY if isinstance(value, np.ndarray) else 0


def _memory_error(what: str, size: int, words: int, memory: int, held: int = 0) -> BudgetError:
    """A refusal of a tensor of `size` bytes, of which `words` times as many are needed."""
    beside = f", beside {bytes_text(held)} of other values" if held else ""
    needs = f" needs {bytes_text(size * words)} while it is computed{beside}"
    over = f"{needs if size <= memory else ''}, over the budget of {bytes_text(memory)}"
    return BudgetError(f"{what} of {bytes_text(size)}{over}; raise --ane-memory.")


WORDS: Mapping[str, int] = {
    **dict.fromkeys(("expand_dims", "identity", "list_length", "list_read", "read_state", "shape",
                     "slice_by_index", "slice_by_size", "squeeze", "transpose"), 0),
    **dict.fromkeys(("concat", "fill", "fill_like", "pad", "reshape", "stack", "tile"), 2),
    **dict.fromkeys(("dequantize", "quantize", "random_bernoulli", "random_uniform"), 5),
    **dict.fromkeys(("cast", "local_response_norm", "resize", "resize_bilinear",
                     "upsample_bilinear"), 6),
    **dict.fromkeys(("affine", "crop_resize", "random_normal", "resample"), 16),
    "erf": 5,
    "gelu": 8,
}  # fmt: skip
"""Numbers held for each element of the result while it is computed, itself among them; measured."""
USUAL_WORDS = 3
_VIEW = 32
"""Numbers as large as numpy's record of a view."""


def result_elements(op: str, parameters: Mapping[str, Any]) -> int:
    """Elements of an operation's results, together with those of what it pads first."""
    rule = RULES.get(op)
    if rule is not None:
        return int(rule(**parameters))
    return max(map(_elements, parameters.values()), default=1)


def volume(shape: Iterable[Any]) -> int:
    """Elements of a shape, its empty axes taken as of length 1."""
    return math.prod(max(int(n), 1) for n in shape)


def _elements(value: Any) -> int:
    if type(value) is np.ndarray and value.size:
        return value.size
    if isinstance(value, (tuple, list)):
        return sum(map(_elements, value))
    return volume(getattr(value, "shape", ()))


def _broadcast(*values: Any) -> int:
    return volume(np.broadcast_shapes(*([n or 1 for n in np.shape(v)] for v in values)))


def _pad(x: Any, pad: Any, **_: Any) -> Any:
    amounts = integers(pad)
    last = [before + after for before, after in zip(amounts[0::2], amounts[1::2], strict=False)]
    shape = list(np.shape(x))
    for i in range(1, min(len(last), len(shape)) + 1):
        shape[-i] += last[-i]
    return volume(shape)


def _range(start: Any, end: Any, step: Any, **_: Any) -> Any:
    first, last, by = (float(np.reshape(v, ())) for v in (start, end, step))
    return max(0, math.ceil((last - first) / by)) if by and math.isfinite(last - first) else 0


def _gather(x: Any, indices: Any, axis: Any = 0, batch_dims: Any = 0, **_: Any) -> Any:
    shape = list(np.shape(x))
    del shape[int(axis)]
    places = volume(np.shape(indices)[int(batch_dims) :])
    return volume(shape) * places + _elements(indices)


def _gather_nd(x: Any, indices: Any, batch_dims: Any = 0, **_: Any) -> Any:
    shape = np.shape(indices)
    return volume(shape[:-1]) * volume(np.shape(x)[int(batch_dims) + shape[-1] :])


def _image(x: Any, height: Any, width: Any) -> Any:
    *others, _, columns = x.shape
    height, width = max(int(height), 1), max(int(width), 1)
    return volume(others) * height * max(width, columns, 1)


def _scaled(x: Any, scale_factor_height: Any = 1, scale_factor_width: Any = 1, **_: Any) -> Any:
    factors = float(scale_factor_height), float(scale_factor_width)
    return _image(x, *(math.floor(n * f) for n, f in zip(x.shape[-2:], factors, strict=True)))


def _resize(x: Any, shape: Any, resized_dims: Any, **_: Any) -> Any:
    """The largest of the tensors that resizing axis by axis goes through."""
    lengths, sizes = list(np.shape(x)), integers(shape)
    largest = volume(lengths)
    for axis in range(-int(resized_dims), 0):
        lengths[axis] = sizes[axis] or lengths[axis]
        largest = max(largest, volume(lengths))
    return largest


def _boxes(
    x: Any, boxes: Any = None, roi: Any = None, target_height: Any = 1, target_width: Any = 1,
    **_: Any,
) -> Any:  # fmt: skip
    images = len(boxes) if roi is None else len(roi) * len(x)
    return max(images, 1) * volume((x.shape[1], target_height, target_width))


def _windows(
    x: Any, kernel: tuple[int, ...], pad_type: Any, pad: Any, strides: Any, dilations: Any
) -> list[tuple[int, int]]:
    """A padded input, and the positions of a kernel in it for one channel."""
    spatial = len(kernel)
    strides, dilations = ints(strides, spatial, 1), ints(dilations, spatial, 1)
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides, dilations)
    padded = [n + sum(pad) for n, pad in zip(x.shape[2:], pads, strict=True)]
    axes = zip(padded, kernel, strides, dilations, strict=True)
    return [(n, (n - extent(k, d)) // s + 1) for n, k, s, d in axes]


def _conv(
    x: Any, weight: Any, pad_type: Any = "valid", pad: Any = None, strides: Any = None,
    dilations: Any = None, **_: Any,
) -> Any:  # fmt: skip
    axes = _windows(x, weight.shape[2:], pad_type, pad, strides, dilations)
    padded, positions = (volume(lengths) for lengths in zip(*axes, strict=True))
    is_padded = padded != volume(x.shape[2:])
    result = volume(x.shape[:2]) * padded * is_padded + len(x) * weight.shape[0] * positions
    # torch lays out the windows of one sample on some processors.
    kernel = volume(weight.shape[2:])
    return result + (x.shape[1] * kernel * positions if kernel > 1 else 0)


def _conv_transpose(
    x: Any, weight: Any, strides: Any = None, dilations: Any = None, groups: Any = 1,
    output_shape: Any = None, **_: Any,
) -> Any:  # fmt: skip
    kernel = weight.shape[2:]
    spatial = len(kernel)
    strides, dilations = ints(strides, spatial, 1), ints(dilations, spatial, 1)
    axes = zip(x.shape[2:], strides, kernel, dilations, strict=True)
    reach = ((n - 1) * s + extent(k, d) for n, s, k, d in axes)
    whole = volume((len(x), weight.shape[1], groups)) * volume(reach)
    # torch lays out the products of one sample with every place of the kernel, and then adds them.
    products = volume((*weight.shape[1:], *x.shape[2:]))
    return whole + products + (0 if output_shape is None else volume(integers(output_shape)))


def _pool(
    x: Any, kernel_sizes: Any, pad_type: Any, strides: Any = None, pad: Any = None, **_: Any
) -> Any:
    kernel = tuple(integers(kernel_sizes))
    axes = _windows(x, kernel, pad_type, pad, strides, None)
    # Under `ceil_mode` the last window may reach over the padding.
    reach = (length + s for (length, _), s in zip(axes, ints(strides, len(kernel), 1), strict=True))
    positions = sum(max(count, 1) for _, count in axes)
    return volume(x.shape[:2]) * volume(reach) + 4 * positions


def _matmul(x: Any, y: Any, transpose_x: Any = False, transpose_y: Any = False) -> Any:
    if x.ndim < 2 or y.ndim < 2:
        return max(_elements(x), _elements(y))
    rows, columns = x.shape[-1 if transpose_x else -2], y.shape[-2 if transpose_y else -1]
    batch = _broadcast(np.empty((*x.shape[:-2], 0)), np.empty((*y.shape[:-2], 0)))
    return batch * volume((rows, columns))


def _einsum(values: Any, equation: Any) -> Any:
    operands, _, result = str(equation).replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    for labels, value in zip(operands.split(","), values, strict=True):
        for label, n in zip(labels, np.shape(value), strict=True):
            lengths[label] = max(n, lengths.get(label, 1))
    return max(volume(lengths[label] for label in result), *map(_elements, values))


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    rows = volume(query.shape[:-1])
    return rows * max(key.shape[-2], 1) + rows * max(value.shape[-1], 1)


def _sliding(x: Any, axis: Any, size: Any, stride: Any = 1) -> Any:
    n = x.shape[int(axis)]
    return _elements(x) // max(n, 1) * max((n - int(size)) // int(stride) + 1, 1) * int(size)


def _suppression(boxes: Any, scores: Any, max_boxes: Any, **_: Any) -> Any:
    classes = _elements(scores) * 4 // max(_elements(boxes), 1)
    kept = max(len(boxes), 1) * max(int(max_boxes), 1) * (classes + 5)
    return kept + _elements(boxes) + _elements(scores)


def _written(ls: Any, index: Any = 0, indices: Any = None, **_: Any) -> Any:
    places = integers(index if indices is None else indices)
    longest = max(places, default=0) + 1 if ls.dynamic else 0
    return max(longest, len(ls.elements)) * 2


def _table(indices: Any, lut: Any, shape: Any = None, **_: Any) -> Any:
    if shape is not None:
        return volume(integers(shape))
    return _elements(indices) * lut.shape[-1]


RULES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(BROADCASTING, lambda **operands: _broadcast(*operands.values())),
    **dict.fromkeys(("fill", "random_bernoulli", "random_normal", "random_uniform"),
                    lambda shape=(), **_: volume(integers(shape))),
    **dict.fromkeys(("avg_pool", "l2_pool", "max_pool"), _pool),
    **dict.fromkeys(("gru", "lstm", "rnn"), lambda x, weight_ih, weight_hh, **_:
                    2 * volume(x.shape[:2]) * (weight_ih.shape[0] + 2 * weight_hh.shape[1])),
    **dict.fromkeys(("upsample_bilinear", "upsample_nearest_neighbor"), _scaled),
    **dict.fromkeys(("resize_bilinear", "resize_nearest_neighbor"),
                    lambda x, target_size_height=1, target_size_width=1, **_:
                    _image(x, target_size_height, target_size_width)),
    "affine": lambda x, output_height, output_width, **_:
              volume((*x.shape[:2], output_height, output_width)),
    "constexpr_lut_to_dense": _table,
    "constexpr_lut_to_sparse": lambda indices_mask, lut, **_: _table(indices_mask, lut),
    "constexpr_sparse_to_dense": lambda mask, shape=(), **_:
                                 max(_elements(mask), volume(integers(shape))),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "crop_resize": _boxes,
    "einsum": _einsum,
    "gather": _gather,
    "gather_along_axis": lambda indices, **_: _elements(indices),
    "gather_nd": _gather_nd,
    "linear": lambda x, weight, **_: volume(x.shape[:-1]) * max(weight.shape[0], 1),
    "list_gather": lambda ls, indices: len(integers(indices)) * math.prod(ls.element_shape),
    "list_scatter": _written,
    "list_write": _written,
    "make_list": lambda init_length=1, **_: 2 * int(init_length),
    "matmul": _matmul,
    "non_maximum_suppression": _suppression,
    "non_zero": lambda x: _elements(x) * 2 * (np.ndim(x) + 1),
    "one_hot": lambda indices, one_hot_vector_size, **_:
               _elements(indices) * max(int(one_hot_vector_size), 1),
    "pad": _pad,
    "random_categorical": lambda x, size=1, **_: _elements(x) * max(int(size), 1),
    "range_1d": _range,
    "resample": lambda x, coordinates, **_: volume(coordinates.shape[:-1]) * x.shape[1],
    "resize": _resize,
    "scaled_dot_product_attention": _attention,
    "sliding_windows": _sliding,
    "space_to_batch": lambda x, paddings, **_: _pad(x, paddings),
    "split": lambda num_splits=None, **_: max(int(num_splits or 1), 1) * _VIEW,
    "tile": lambda x, reps, **_: _elements(x) * volume(integers(reps)),
}  # fmt: skip
