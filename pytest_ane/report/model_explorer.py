"""Programs as graphs with node data, for Google's Model Explorer (its JSON form, as of 0.1.30)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.mlprogram.records import (
    Blob,
    Block,
    Function,
    MLModel,
    Named,
    Operation,
    Pipeline,
    Ref,
    StateType,
    TensorType,
    Value,
    ValueType,
)
from pytest_ane.mlprogram.text import NAME, printable
from pytest_ane.report.html.subjects import Subject, strip

Json: TypeAlias = "dict[str, Any]"
_Origin: TypeAlias = "tuple[str, int] | str"
"""A node and the index of its output; or a text for what no node makes."""

_LARGE = 16
"""Elements from which a constant is a node of its own; smaller ones are attributes."""
_UNITS = {"ane": "#c8e6c9", "cpu": "#ffe0b2", "gpu": "#d1c4e9", "off": "#ffcdd2"}
_RISKY = "#ffe0b2"
_ERRORS = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e57373"})
_UNDEFINED = "#b71c1c"


def collection(label: str, model: MLModel | Pipeline) -> Json:
    """A model as one of Model Explorer's graph collections: a graph for each program.

    `label` is the shard, qualified, and the graph's id, of several with the part's name.
    """
    parts = model.programs if isinstance(model, Pipeline) else {"": model}
    return {
        "label": printable(label, NAME),
        "graphs": [
            graph(printable(f"{label}/{name}" if name else label, NAME), part.main)
            for name, part in parts.items()
        ],
    }


def graph(id: str, function: Function) -> Json:
    """A function as a graph: inputs, operations, large constants and outputs are its nodes."""
    made = _Graph()
    for port in function.inputs:
        made.add(port.name, "input", outputs=(port,))
    for name, origin in zip(function.block.outputs, made.block(function.block, ""), strict=True):
        made.link(made.add(f"output {name}", "output"), origin, "value")
    return {"id": id, "nodes": list(made.nodes.values())}


def node_data(subject: Subject, graphs: Sequence[Json]) -> dict[str, Json]:
    """What gates say of each operation, by a word for it: `unit`, `error`, `hazards`.

    Node data by graph, of a shard's own graphs, for each word; words without data are left out.
    """
    ops = {printable(op.name, NAME): op for op in strip(subject)}
    coloured = {unit: {"bgColor": colour} for unit, colour in _UNITS.items()}
    found: dict[str, dict[str, Json]] = {
        # Where it runs, and how that is known: `predicted ANE`.
        "unit": {
            name: {"value": op.where.partition(",")[0]} | coloured.get(op.unit, {})
            for name, op in ops.items()
        },
        # The relative error that it adds itself, of shards whose error was explained.
        "error": {
            printable(str(row["op"]), NAME): {"value": own}
            if math.isfinite(own := float(row["own error"]))
            else {"value": str(own), "bgColor": _UNDEFINED}
            for row in subject.records("blame.operations")
            if row["own error"] is not None
        },
        # What the ANE's arithmetic met in it.
        "hazards": {
            name: {"value": op.hazards, "bgColor": _RISKY} for name, op in ops.items() if op.hazards
        },
    }
    more: Mapping[str, Json] = {"error": {"gradient": list(_ERRORS)}}
    data: dict[str, Json] = {}
    for word, results in found.items():
        for made in graphs:
            nodes = {node["id"] for node in made["nodes"]}
            if known := {name: value for name, value in results.items() if name in nodes}:
                of = {"name": word, "results": known, **more.get(word, {})}
                data.setdefault(word, {})[made["id"]] = of
    return data


@dataclass
class _Graph:
    """Nodes by id; by a value's name the node and output it comes from, or a small constant."""

    nodes: dict[str, Json] = field(default_factory=dict)
    sources: dict[str, tuple[str, int]] = field(default_factory=dict)
    small: dict[str, Value] = field(default_factory=dict)

    def add(self, name: str, label: str, space: str = "", outputs: Sequence[Named] = ()) -> Json:
        name = printable(name, NAME)
        id, again = name, 1
        while id in self.nodes:
            again += 1
            id = f"{name} #{again}"
        node: Json = {
            "id": id,
            "label": printable(label, NAME),
            "namespace": space,
            "attrs": [],
            "incomingEdges": [],
            "inputsMetadata": [],
            "outputsMetadata": [_output(i, port) for i, port in enumerate(outputs)],
        }
        self.nodes[id] = node
        self.sources |= {port.name: (id, i) for i, port in enumerate(outputs)}
        return node

    def origin(self, name: str) -> _Origin:
        """Where a value comes from; its own name where nobody makes it, as in a damaged program."""
        if name in self.small:
            return _constant(self.small[name])
        return self.sources.get(name, printable(name, NAME))

    def link(self, node: Json, origin: _Origin, parameter: str) -> None:
        if isinstance(origin, str):
            _attribute(node, parameter, origin)
            return
        source, output = origin
        target = str(len(node["incomingEdges"]))
        edge = {"sourceNodeId": source, "sourceNodeOutputId": str(output)}
        node["incomingEdges"].append(edge | {"targetNodeInputId": target})
        tag = {"key": "__tensor_tag", "value": printable(parameter, NAME)}
        node["inputsMetadata"].append({"id": target, "attrs": [tag]})

    def block(self, block: Block, space: str) -> list[_Origin]:
        for operation in block.operations:
            self.operation(operation, space)
        return [self.origin(name) for name in block.outputs]

    def operation(self, op: Operation, space: str) -> None:
        value = op.attributes.get("val") if op.op == "const" else None
        if value is not None and not _is_large(value):
            self.small |= {port.name: value for port in op.outputs}
            return
        inner = "/".join(filter(None, (space, printable(op.name, NAME).replace("/", "_"))))
        ends = [end for block in op.blocks for end in self._nested(op, block, inner)]
        node = self.add(op.name, op.op, space or _scope(op), op.outputs)
        if value is not None:
            _attribute(node, "val", _constant(value))
        for parameter, arguments in op.inputs.items():
            for each in arguments:
                origin = self.origin(each.name) if isinstance(each, Ref) else _constant(each)
                self.link(node, origin, parameter)
        for end in ends:
            self.link(node, end, "block")

    def _nested(self, op: Operation, block: Block, space: str) -> list[_Origin]:
        """A block's operations; its inputs are the loop's variables, in their order."""
        outer = dict(self.sources), dict(self.small)
        taken = [a.name for a in op.inputs.get("loop_vars", ()) if isinstance(a, Ref)]
        origins = map(self.origin, taken)
        for port, origin in zip_longest(block.inputs, [*origins][: len(block.inputs)]):
            node = self.add(port.name, "block input", space, (port,))
            if origin is not None:
                self.link(node, origin, "loop_vars")
        ends = self.block(block, space)
        self.sources, self.small = outer
        return ends


def _output(index: int, port: Named) -> Json:
    dtype, shape = _type(port.type)
    texts = {"tensor_name": printable(port.name, NAME), "dtype": dtype, "shape": shape}
    return {"id": str(index), "attrs": [{"key": k, "value": v} for k, v in texts.items() if v]}


def _type(of: ValueType) -> tuple[str, str]:
    tensor = of.wrapped if isinstance(of, StateType) else of
    if not isinstance(tensor, TensorType):
        return type(of).__name__.removesuffix("Type").lower(), ""
    state = "state of " if isinstance(of, StateType) else ""
    dims = ("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{state}{tensor.dtype}", "x".join(dims)


def _is_large(value: Value) -> bool:
    data = value.data
    return isinstance(data, Blob) or (isinstance(data, np.ndarray) and data.size >= _LARGE)


def _constant(value: Value) -> str:
    if _is_large(value):
        return " ".join(filter(None, _type(value.type)))
    data = value.data
    return printable(str(data.tolist() if isinstance(data, np.ndarray) else data), NAME)


def _attribute(node: Json, key: str, value: str) -> None:
    node["attrs"].append({"key": printable(key, NAME), "value": value})


def _scope(op: Operation) -> str:
    name = op.attributes.get("name")
    text = name.data if name is not None and isinstance(name.data, str) else op.name
    scope = text.replace(".", "/").rpartition("/")[0]
    return "/".join(printable(part, NAME) for part in scope.split("/") if part)
