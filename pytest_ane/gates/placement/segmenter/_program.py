"""The operations of a MIL program as the segmenter sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_ane.gates.placement._graph import EXTENT_PARAMETERS, Depends, Graph, Site
from pytest_ane.gates.placement.segmenter._predict import predict
from pytest_ane.gates.placement.segmenter._records import NoData, Op, Predicted, Tensor, Units
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.executor.shapes import token_range, value_shapes
from pytest_ane.mlprogram.records import Argument, Function, MLModel, Ref, TensorType

Shapes = Mapping[str, Sequence[int]]

_MOST_TOKENS = 512
_OPERANDS = {
    **dict.fromkeys(("conv", "conv_transpose", "linear"), ("x",)),
    **dict.fromkeys(("gather", "gather_along_axis", "gather_nd"), ("x", "indices")),
    **dict.fromkeys(("concat", "stack"), ("values",)),
    "matmul": ("x", "y"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "select": ("cond", "a", "b"),
}
"""Parameters that are counted though they may be constant, in the order the costs expect."""
_ELEMENTWISE = frozenset(
    {"add", "equal", "floor_div", "greater", "greater_equal", "less", "less_equal", "logical_and"}
    | {"logical_or", "logical_xor", "maximum", "minimum", "mod", "mul", "not_equal", "pow"}
    | {"real_div", "sub"}
)
_RUN_TIME = {"runtime_indices": ("gather", "indices"), "runtime_begin": ("slice_by_size", "begin")}
_WEIGHTED = frozenset({"conv", "conv_transpose", "linear"})
_PARAMETERS = {"slice_update": ("begin", "end", "stride")}
"""Run-time integers that are no data, besides those that decide the result's extents."""
_ATTRIBUTES = {
    **dict.fromkeys(("avg_pool", "l2_pool", "max_pool"), ("kernel_sizes",)),
    "conv": ("dilations", "groups"),
    "conv_transpose": ("groups",),
    "matmul": ("transpose_x",),
    "transpose": ("perm",),
}
_STATES = frozenset({"read_state", "write_state", "coreml_update_state"})


def predict_model(
    model: MLModel, units: Units = "CPU_AND_NE", chip: str = "M4", tokens: int | None = None
) -> tuple[Predicted, ...]:
    """Predicted placement of a package, the likeliest to leave the ANE first.

    Weights need not be readable. `tokens` is T of flexible inputs; by default the least and the
    greatest they take, up to 512.

    Raises:
        ManifestError: there is no such chip.
    """
    flexible = [name for name, f in model.program.functions.items() if _flexible(f)]
    lengths = (tokens,) if tokens else token_range(model, _MOST_TOKENS)
    missing: list[NoData] = ["several functions"] if len(model.program.functions) > 1 else []
    missing += ["flexible shapes"] if flexible else []
    predicted: list[Predicted] = []
    for at in dict.fromkeys(lengths) if flexible else [None]:
        for name, function in model.program.functions.items():
            if name in flexible or at in (None, lengths[0]):
                at_tokens = at if name in flexible else None
                shapes, unknown = _shapes(model, function, at_tokens)
                ops = function_ops(function, shapes)
                prediction = predict(ops, units, chip, missing)
                predicted.append(Predicted(name, at_tokens, prediction, unknown, ops))
    return tuple(sorted(predicted, key=Predicted.weakness))


def _shapes(model: MLModel, function: Function, tokens: int | None) -> tuple[Shapes, str]:
    """Shapes of a function's values at a T, or why they are not known."""
    if tokens is None:
        return {}, ""
    if function is not model.main:
        return {}, "its inputs are flexible; choose the function by name"
    try:
        return value_shapes(model, tokens), ""
    except AneError as error:
        return {}, str(error).removeprefix(f"{model.path}: ").rstrip(".")


def function_ops(function: Function, shapes: Shapes = MappingProxyType({})) -> tuple[Op, ...]:
    """Operations in file order, nested blocks in line.

    Constants are left out, and what Core ML folds into them: operations on constants and shapes.
    """
    top = {id(operation) for operation in function.block.operations}
    readers = (_Reader(site, shapes) for site in Graph(function).sites())
    return tuple(r.op(nested=id(r.site.operation) not in top) for r in readers if not r.folded)


def _flexible(function: Function) -> bool:
    types = (named.type for named in function.inputs)
    return any(isinstance(kind, TensorType) and None in kind.shape for kind in types)


@dataclass(frozen=True, eq=False)
class _Reader:
    site: Site
    shapes: Shapes

    @property
    def folded(self) -> bool:
        outputs = self.site.operation.outputs
        return bool(outputs) and all(self._known(Ref(named.name)) for named in outputs)

    def op(self, *, nested: bool) -> Op:
        site, inputs = self.site, tuple(self._inputs())
        attributes = {
            name: values for name in _ATTRIBUTES.get(site.op, ()) if (values := site.integers(name))
        }
        given = site.argument("weight") if site.op in _WEIGHTED else None
        weight = self._argument(given) if given is not None else None
        if weight and not weight.constant:
            inputs = (*inputs, weight)
        if site.op in _WEIGHTED:
            attributes["bias"] = (int(site.argument("bias") is not None),)
        if perm := attributes.get("perm"):
            attributes["perm"] = tuple(axis % len(perm) for axis in perm)
        for name, (kind, parameter) in _RUN_TIME.items():
            if site.op == kind and (argument := site.argument(parameter)):
                attributes[name] = (int(not self._known(argument)),)
        outputs = tuple(
            self._tensor(named.name, named.type)
            for named in site.operation.outputs
            if isinstance(named.type, TensorType)
        )
        name, missing = site.operation.name, tuple(self._no_data(nested))
        boundary = bool(site.boundary)
        return Op(name, site.op, inputs, outputs, weight, attributes, missing, boundary)

    def _no_data(self, nested: bool) -> Iterator[NoData]:
        arguments = (argument for _, argument in self.site.arguments())
        if any(any(self.site.compressed_by(argument)) for argument in arguments):
            yield "compressed weights"
        if self.site.op in _STATES:
            yield "states"
        if nested:
            yield "nested blocks"

    def _inputs(self) -> Iterator[Tensor]:
        site = self.site
        names = ("x", "y") if site.op in _ELEMENTWISE else _OPERANDS.get(site.op, ())
        if names:
            arguments = (a for name in names for a in site.operation.inputs.get(name, ()))
            yield from (tensor for a in arguments if (tensor := self._argument(a)))
            return
        left_out = (*EXTENT_PARAMETERS.get(site.op, ()), *_PARAMETERS.get(site.op, ()))
        for name, argument in site.arguments():
            tensor = None if name in left_out else self._argument(argument)
            if tensor and not tensor.constant:
                yield tensor

    def _argument(self, argument: Argument) -> Tensor | None:
        kind = self.site.graph.tensor(argument)
        if kind is None:
            return None
        tensor = self._tensor(argument.name if isinstance(argument, Ref) else "", kind)
        if self._known(argument):
            return replace(tensor, constant=True)
        # Core ML casts the run-time indices of a gather before it segments the program.
        if self.site.op.startswith("gather") and tensor.dtype == "int32":
            return replace(tensor, dtype="int16")
        return tensor

    def _tensor(self, name: str, kind: TensorType) -> Tensor:
        shape = kind.shape if None not in kind.shape else self.shapes.get(name, kind.shape)
        return Tensor(tuple(shape), kind.dtype.value)

    def _known(self, argument: Argument) -> bool:
        return self.site.graph.origin(argument).values < Depends.VALUES
