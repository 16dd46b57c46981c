"""Operations for the segmenter from the rows of published cases and plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_ane.gates.placement.segmenter import Op, Tensor
from pytest_ane.gates.placement.segmenter._costs import Shape

Row: TypeAlias = Mapping[str, str]

_BINARY = frozenset(
    {"add", "sub", "mul", "real_div", "floor_div", "maximum", "minimum", "pow", "mod", "equal"}
    | {"not_equal", "less", "less_equal", "greater", "greater_equal"}
)
_INDEX_TYPES = {"cast": "int16", "greater_equal": "bool"}


def shape(text: str) -> Shape:
    """`1x64x32x32`, the first of several; an extent that is no number is known only at run time."""
    text = text.partition(";")[0]
    if text in ("", "scalar"):
        return ()
    return tuple(int(extent) if extent.isdigit() else None for extent in text.split("x"))


def case_op(row: Row) -> Op:
    """The operation of a row of cases."""
    kind, parameters = row["op"], _parameters(row["params"])
    source, _, result = row["dtypes"].partition("->")
    inputs = _case_inputs(row, parameters, source)
    attributes: dict[str, tuple[int, ...]] = {}
    if kind == "gather" and parameters.get("idx") == "dyn":
        attributes["runtime_indices"] = (1,)
    if kind == "slice_by_size" and "dyn" in parameters:
        inputs, attributes["runtime_begin"] = inputs[:1], (1,)
    weight = Tensor(shape(parameters["w"]), source) if "w" in parameters else None
    if weight:
        axes = max(len(weight.shape) - 2, 1)
        attributes["groups"] = (int(parameters.get("groups", 1)),)
        attributes["dilations"] = (int(parameters.get("dilation", 1)),) * axes
    for name, parameter in (("kernel_sizes", "k"), ("perm", "perm"), ("transpose_x", "tx")):
        if parameter in parameters:
            attributes[name] = tuple(int(number) for number in parameters[parameter].split("x"))
    outputs: tuple[Tensor, ...] = (Tensor(shape(row["out_shape"]), result),)
    if kind == "split" and inputs:
        # The row has the first of equal parts.
        outputs *= max(inputs[0].elements // max(outputs[0].elements, 1), 1)
    return Op(f"{row['case']}/{row['index']}", kind, tuple(inputs), outputs, weight, attributes)


def _parameters(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def _case_inputs(row: Row, parameters: Mapping[str, str], source: str) -> list[Tensor]:
    kind = row["op"]
    inputs = [Tensor(shape(text), source) for text in row["in_shapes"].split(";") if text]
    if kind in _BINARY and len(inputs) == 1:
        inputs.append(Tensor((), source, constant=True))
    if kind == "select" and inputs:
        inputs[0] = replace(inputs[0], dtype="bool")
    if kind.startswith(("gather", "scatter")) and len(inputs) > 1:
        # Core ML casts run-time indices of a gather to int16; others stay int32.
        dtype = "int16" if parameters.get("idx") == "dyn" else "int32"
        inputs[1] = Tensor(inputs[1].shape, dtype, constant=dtype == "int32")
    return inputs


def plan_ops(rows: Sequence[Row]) -> list[Op]:
    """The chain of a plan; inputs have the shape of the result before, or that of a note."""
    ops: list[Op] = []
    before: Shape = ()
    for row in rows:
        result = shape(row["out_shape"])
        ops.append(_plan_op(row, result, before or result))
        before = result
    return ops


def _plan_op(row: Row, result: Shape, before: Shape) -> Op:
    name, kind, note = row["index"], row["op"], row["note"]
    output = (Tensor(result),)
    if "int32" in note:
        return _index_op(name, kind, result)
    if table := re.search(r"table (\d+)x(\d+)", note):
        inputs = (Tensor(tuple(map(int, table.groups()))), Tensor(result[:-1], "int16"))
        return Op(name, kind, inputs, output, attributes={"runtime_indices": (1,)})
    if kind == "linear":
        width, depth = result[-1], _channels(note, before[-1])
        return Op(name, kind, (Tensor((*result[:-1], depth)),), output, Tensor((width, depth)))
    if kind in ("conv", "conv_transpose") or kind.endswith("_pool"):
        return _windowed(row, result, before)
    if kind == "matmul":
        # The result before is the second factor where it is as wide as the product.
        shared = before[-2 if len(before) > 1 and before[-1] == result[-1] else -1]
        factors = ((*result[:-1], shared), (*result[:-2], shared, *result[-1:]))
        return Op(name, kind, tuple(map(Tensor, factors)), output)
    if kind in _BINARY:
        second = Tensor((), constant=True) if "const" in note else Tensor(result)
        return Op(name, kind, (Tensor(result), second), output)
    reads = before if kind.startswith("reduce_") else result
    source = "fp32" if kind == "cast" else "fp16"
    return Op(name, kind, (Tensor(reads, source),), output)


def _index_op(name: str, kind: str, result: Shape) -> Op:
    """The integer arithmetic before a gather."""
    inputs = [Tensor(result, "int32")]
    if kind == "select":
        inputs = [Tensor(result, "bool"), *inputs, *inputs]
    return Op(name, kind, tuple(inputs), (Tensor(result, _INDEX_TYPES.get(kind, "int32")),))


def _windowed(row: Row, result: Shape, before: Shape) -> Op:
    """A convolution or pooling; the input's extents are the result's by the stride."""
    kind, note = row["op"], row["note"]
    kernel, stride = _number(r"\bk(\d+)", note, 1), _number(r"\bs(\d+)", note, 1)
    width, *spatial = (extent or 1 for extent in result[1:])
    sides = (kernel,) * len(spatial)
    depth, weight = width, None
    if not kind.endswith("_pool"):
        depth = _channels(note, before[1] if len(before) > 1 else width)
        depthwise = re.search(r"\bdw\b|depthwise", note)
        groups = width if depthwise else _number(r"\bg(?:roups=)?(\d+)", note, 1)
        weight = Tensor((width, max(depth // groups, 1), *sides))
    reads = Tensor((*result[:1], depth, *(extent * stride for extent in spatial)))
    # Batch norms are folded into the bias.
    attributes = {"kernel_sizes": sides, "bias": (1,)}
    return Op(row["index"], kind, (reads,), (Tensor(result),), weight, attributes)


def _channels(note: str, default: int | None) -> int:
    return _number(r"(\d+)->\d+", note, default or 1)


def _number(pattern: str, text: str, default: int) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else default
