"""Forms of unsupported operations that the ANE takes, as the segmenter sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_ane.gates.placement.segmenter.records import Op, Tensor
from pytest_ane.gates.placement.segmenter.support import limit, obstacle, takes_type

_RECIPES: Mapping[str, tuple[str, ...]] = {
    "acosh": ("mul", "sub", "sqrt", "add", "log"),
    "asinh": ("mul", "add", "sqrt", "add", "log"),
    "atanh": ("add", "sub", "real_div", "log", "mul"),
    "band_part": ("mul",),
    "cosh": ("exp", "exp", "add", "mul"),
    "crop_resize": ("resample",),
    "mod": ("floor_div", "mul", "sub"),
    "one_hot": ("equal", "cast"),
    "reduce_prod": ("log", "reduce_sum", "exp"),
    "scatter": ("select",),
    "scatter_along_axis": ("select",),
    "scatter_nd": ("select",),
    "sinh": ("exp", "exp", "sub", "mul"),
    "sliding_windows": ("slice_by_index", "stack"),
    "tan": ("sin", "cos", "real_div"),
}
"""Operations with the same result, in order; sums of products and unrolled steps are below."""
_BINARY = frozenset({"add", "equal", "floor_div", "mul", "real_div", "select", "sub"})
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_STEP = {
    "lstm": ("linear", "sigmoid", "sigmoid", "tanh", "sigmoid", "mul", "mul", "add", "tanh", "mul"),
    "gru": ("linear", "sigmoid", "sigmoid", "mul", "tanh", "mul", "sub", "add"),
    "rnn": ("linear", "add", "tanh"),
}
_STEPS = 512
"""Longest sequence that is unrolled."""


@dataclass(frozen=True)
class Change:
    """A form of an operation that the ANE takes.

    Attributes:
        how: as what it is computed; operations with the same words change together.
        ops: in its place; none for a cast of no further use.
    """

    kind: Literal["rewrite", "cast", "pad", "split"]
    how: str
    ops: tuple[Op, ...]

    def order(self, operations: str) -> str:
        """What to do with operations, such as `2 mod`."""
        verb = {"rewrite": "rewrite", "cast": "compute", "pad": "pad", "split": "split"}[self.kind]
        return f"{verb} {operations} {self.how}"


def supported_form(op: Op) -> Change | None:
    """A form of an unsupported operation that the ANE takes; None where none is known."""
    for form in (_recurrent, _recipe, _cumsum, _looked_up, _half, _narrow, _laid_out):
        change = form(op)
        if change and not any(obstacle(part, "ane") for part in change.ops):
            return change
    return None


def _recipe(op: Op) -> Change | None:
    kinds = _RECIPES.get(op.kind)
    if kinds is None:
        return None
    result, parts = _fp16(op).outputs[:1], []
    inputs = _fp16(op).inputs
    for kind in kinds:
        parts.append(_named(op, kind, inputs, result))
        inputs = result * 2
    return Change("rewrite", f"as {', '.join(dict.fromkeys(kinds))}", tuple(parts))


def _cumsum(op: Op) -> Change | None:
    """A product with a triangular matrix, as if over the last axis."""
    if op.kind != "cumsum" or not op.inputs:
        return None
    half = _fp16(op)
    width = op.inputs[0].shape[-1] if op.inputs[0].shape else 1
    triangle = Tensor((width, width), constant=True)
    product = _named(op, "matmul", (*half.inputs[:1], triangle), half.outputs)
    return Change("rewrite", "as matmul with a triangular matrix", (product,))


def _looked_up(op: Op) -> Change | None:
    """Rows by a product with a matrix of ones and zeros."""
    if op.kind != "gather" or not op.flag("runtime_indices") or len(op.inputs) < 2:
        return None
    half = _fp16(op)
    table, indices = half.inputs[:2]
    rows = table.shape[0] if table.shape else 1
    marks = Tensor((indices.elements, rows))
    where = Tensor((rows,), constant=True)
    parts = (
        _named(op, "equal", (indices, where), (replace(marks, dtype="bool"),)),
        _named(op, "cast", (replace(marks, dtype="bool"),), (marks,)),
        _named(op, "matmul", (marks, table), half.outputs),
    )
    return Change("rewrite", "as matmul with a one-hot matrix", parts)


def _recurrent(op: Op) -> Change | None:
    """Steps: a `linear` of input and state for all gates, then element-wise operations."""
    sequence = next((tensor for tensor in op.inputs if len(tensor.shape) == 3), None)
    if op.kind not in _GATES or sequence is None:
        return None
    steps, batch, width = (extent or 1 for extent in sequence.shape)
    hidden = (op.outputs[0].shape[-1] if op.outputs and op.outputs[0].shape else 1) or 1
    if steps > _STEPS:
        return None
    gates = _GATES[op.kind] * hidden
    state = Tensor((batch, hidden))
    joined = Tensor((batch, width + hidden))
    linear = replace(
        _named(op, "linear", (joined,), (Tensor((batch, gates)),)),
        weight=Tensor((gates, width + hidden), constant=True),
        attributes={"bias": (1,)},
    )
    inputs = {kind: (state,) * (1 + (kind in _BINARY)) for kind in _STEP[op.kind]}
    step = [
        linear if kind == "linear" else _named(op, kind, inputs[kind], (state,))
        for kind in _STEP[op.kind]
    ]
    return Change("rewrite", "as unrolled steps of linear, sigmoid, tanh and mul", (*step,) * steps)


def _half(op: Op) -> Change | None:
    """The same in fp16; a cast between types that are now the same is none."""
    types = [t.dtype for t in (*op.inputs, *op.outputs) if not t.constant]
    outside = sorted({dtype for dtype in types if not takes_type(op.kind, dtype)})
    if not outside:
        return None
    half = _fp16(op)
    same = op.kind == "cast" and half.inputs[:1] == half.outputs[:1]
    return Change("cast", f"in fp16 instead of {' and '.join(outside)}", () if same else (half,))


def _narrow(op: Op) -> Change | None:
    """A kernel, a window or the summed axis in parts that are small enough."""
    if op.kind == "conv" and op.weight is not None and len(op.weight.shape) in (3, 4):
        *rows, width = (extent or 1 for extent in op.weight.shape[2:])
        high = rows[0] if rows else 1
        side = limit("kernel width") if high == 1 else limit("kernel side")
        tall = limit("kernel height") if width == 1 else limit("kernel side")
        down, across = math.ceil(high / tall), math.ceil(width / side)
        kernel = (*(math.ceil(extent / down) for extent in rows), math.ceil(width / across))
        weight = replace(op.weight, shape=(*op.weight.shape[:2], *kernel))
        part = replace(op, weight=weight)
        return _summed(op, part, down * across, "into convolutions with smaller kernels")
    if op.kind == "max_pool" and (sizes := op.attributes.get("kernel_sizes")):
        count = math.ceil((sizes[-1] - 1) / (limit("max_pool width") - 1))
        width = math.ceil((sizes[-1] - 1) / max(count, 1)) + 1
        part = replace(op, attributes={**op.attributes, "kernel_sizes": (*sizes[:-1], width)})
        return Change("split", "into narrower ones in a row", (part,) * count) if count else None
    if op.kind == "matmul" and len(op.inputs) > 1:
        x, y = op.inputs[:2]
        axis = -2 if op.flag("transpose_x") else -1
        depth = x.shape[axis] or 1
        count = math.ceil(depth / limit("matmul depth"))
        inputs = tuple(_with_extent(t, depth, math.ceil(depth / count)) for t in (x, y))
        part = replace(op, inputs=inputs)
        return _summed(op, part, count, "into products over fewer elements")
    return None


def _summed(op: Op, part: Op, count: int, how: str) -> Change | None:
    if count < 2:
        return None
    add = _named(op, "add", (*op.outputs[:1], *op.outputs[:1]), op.outputs)
    return Change("split", f"{how}, and add", (part,) * count + (add,) * (count - 1))


def _laid_out(op: Op) -> Change | None:
    """A long axis as two, padded where it does not divide; a tensor of many axes with fewer."""
    longest = limit("axis")
    tensors = [*op.inputs, *op.outputs]
    extents = {e for tensor in tensors for e in tensor.shape if e and e > longest}
    padded = any(e % math.ceil(e / longest) for e in extents)
    if not extents and all(len(tensor.shape) <= limit("rank") for tensor in tensors):
        return None
    inputs, outputs = (tuple(map(_folded, group)) for group in (op.inputs, op.outputs))
    how = "with a long axis laid out as two" if extents else "with fewer axes"
    folded = replace(op, inputs=inputs, outputs=outputs)
    return Change("pad" if padded else "rewrite", how, (folded,))


def _folded(tensor: Tensor) -> Tensor:
    longest, rank, shape = limit("axis"), limit("rank"), list[int | None]()
    for extent in tensor.shape:
        parts = math.ceil((extent or 1) / longest)
        shape += [parts, math.ceil((extent or 1) / parts)] if parts > 1 else [extent]
    if len(shape) > rank:
        shape = [extent for extent in shape if extent != 1] or [1]
    if len(shape) > rank:
        head = math.prod(extent or 1 for extent in shape[: -rank + 1])
        shape = [head, *shape[-rank + 1 :]]
    return replace(tensor, shape=tuple(shape))


def _with_extent(tensor: Tensor, old: int, new: int) -> Tensor:
    return replace(tensor, shape=tuple(new if extent == old else extent for extent in tensor.shape))


def _fp16(op: Op) -> Op:
    """Tensors of types that the ANE does not have as fp16; constant ones too."""

    def half(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(t if takes_type("", t.dtype) else replace(t, dtype="fp16") for t in tensors)

    return replace(op, inputs=half(op.inputs), outputs=half(op.outputs))


def _named(op: Op, kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Op:
    """A part of an operation, under its name."""
    return Op(op.name, kind, tuple(inputs), tuple(outputs), no_data=op.no_data)
