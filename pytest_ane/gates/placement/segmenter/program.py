"""The operations of a MIL program as the segmenter sees them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.gates.placement.graph import EXTENT_PARAMETERS, Depends, Graph, Site
from pytest_ane.gates.placement.segmenter.predict import predict
from pytest_ane.gates.placement.segmenter.records import NoData, Op, Prediction, Tensor, Units
from pytest_ane.mil.records import Argument, Function, Program, Ref, TensorType

_OPERANDS = {
    "concat": ("values",),
    "gather": ("x", "indices"),
    "gather_along_axis": ("x", "indices"),
    "gather_nd": ("x", "indices"),
    "matmul": ("x", "y"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "select": ("cond", "a", "b"),
    "stack": ("values",),
}
"""Parameters that are counted though they may be constant, in the order the costs expect."""
_ELEMENTWISE = frozenset(
    {"add", "equal", "floor_div", "greater", "greater_equal", "less", "less_equal", "logical_and"}
    | {"logical_or", "logical_xor", "maximum", "minimum", "mod", "mul", "not_equal", "pow"}
    | {"real_div", "sub"}
)
_WEIGHTED = frozenset({"conv", "conv_transpose", "linear"})
_PARAMETERS = {"slice_update": ("begin", "end", "stride")}
"""Run-time integers that are no data, besides those that decide the result's extents."""
_ATTRIBUTES = {
    "avg_pool": ("kernel_sizes",),
    "conv": ("dilations", "groups"),
    "conv_transpose": ("groups",),
    "l2_pool": ("kernel_sizes",),
    "matmul": ("transpose_x",),
    "max_pool": ("kernel_sizes",),
    "transpose": ("perm",),
}
_STATES = frozenset({"read_state", "write_state", "coreml_update_state"})


def predict_program(
    program: Program, units: Units = "CPU_AND_NE", chip: str = "M4"
) -> dict[str, Prediction]:
    """Predicted placement of each function.

    Raises:
        ManifestError: the chip's costs are unknown.
    """
    several: tuple[NoData, ...] = ("several functions",) if len(program.functions) > 1 else ()
    return {
        name: predict(function_ops(function), units, chip, several)
        for name, function in program.functions.items()
    }


def function_ops(function: Function) -> tuple[Op, ...]:
    """Operations in file order, nested blocks in line; constants and what they expand left out."""
    return tuple(_ops(Graph(function)))


def _ops(graph: Graph) -> Iterator[Op]:
    nested = {
        id(op) for outer in graph.function.walk() for b in outer.blocks for op in b.operations
    }
    for site in graph.sites():
        operation = site.operation
        folded = all(
            graph.origin(Ref(named.name)).values == Depends.NOTHING for named in operation.outputs
        )
        if folded and operation.outputs:
            continue
        yield _op(site, nested=id(operation) in nested)


def _op(site: Site, *, nested: bool) -> Op:
    attributes = {
        name: values for name in _ATTRIBUTES.get(site.op, ()) if (values := _integers(site, name))
    }
    inputs = tuple(_inputs(site))
    weight = None
    if site.op in _WEIGHTED and (argument := site.argument("weight")):
        weight = _tensor(site, argument)
        if weight and not weight.constant:
            inputs = (*inputs, weight)
        attributes["bias"] = (int(site.argument("bias") is not None),)
    if site.op == "transpose" and "perm" in attributes:
        rank = len(attributes["perm"])
        attributes["perm"] = tuple(axis % rank for axis in attributes["perm"])
    if site.op == "gather" and _at_run_time(site, "indices"):
        attributes["runtime_indices"] = (1,)
    if site.op == "slice_by_size" and _at_run_time(site, "begin"):
        attributes["runtime_begin"] = (1,)
    outputs = tuple(_plain(kind) for kind in site.outputs())
    missing: list[NoData] = []
    if any(True for _, argument in site.arguments() for _ in site.compressed_by(argument)):
        missing.append("compressed weights")
    if site.op in _STATES:
        missing.append("states")
    if nested:
        missing.append("nested blocks")
    return Op(site.operation.name, site.op, inputs, outputs, weight, attributes, tuple(missing))


def _inputs(site: Site) -> Iterator[Tensor]:
    if site.op in _WEIGHTED:
        names: tuple[str, ...] = ("x",)
    else:
        names = ("x", "y") if site.op in _ELEMENTWISE else _OPERANDS.get(site.op, ())
    if names:
        arguments = (a for name in names for a in site.operation.inputs.get(name, ()))
        for argument in arguments:
            if tensor := _tensor(site, argument):
                yield tensor
        return
    left_out = (*EXTENT_PARAMETERS.get(site.op, ()), *_PARAMETERS.get(site.op, ()))
    for name, argument in site.arguments():
        tensor = None if name in left_out else _tensor(site, argument)
        if tensor and not tensor.constant:
            yield tensor


def _tensor(site: Site, argument: Argument) -> Tensor | None:
    kind = site.graph.tensor(argument)
    if kind is None:
        return None
    tensor = _plain(kind)
    if site.graph.origin(argument).values == Depends.NOTHING:
        return Tensor(tensor.shape, tensor.dtype, constant=True)
    # Core ML casts the run-time indices of a gather before it segments the program.
    if site.op.startswith("gather") and tensor.dtype == "int32":
        return Tensor(tensor.shape, "int16")
    return tensor


def _plain(kind: TensorType) -> Tensor:
    return Tensor(kind.shape, kind.dtype.value)


def _at_run_time(site: Site, parameter: str) -> bool:
    argument = site.argument(parameter)
    return argument is not None and site.graph.origin(argument).values > Depends.NOTHING


def _integers(site: Site, parameter: str) -> tuple[int, ...]:
    argument = site.argument(parameter)
    array = None if argument is None else site.graph.array(argument)
    return () if array is None else tuple(int(number) for number in array.ravel())
