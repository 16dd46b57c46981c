"""Files for Model Explorer, read with its own records."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


def loaded(kind: Any, value: Any) -> Any:
    """JSON data as a record of Model Explorer's; unknown keys and wrong types are errors."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        records = [a for a in arguments if dataclasses.is_dataclass(a)]
        return loaded(records[0], value) if isinstance(value, dict) and records else value
    if origin is list:
        return [loaded(arguments[0], each) for each in value]
    if origin is dict:
        return {key: loaded(arguments[1], each) for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{key: loaded(hints[key], each) for key, each in value.items()})
    if kind in (str, bool):
        assert isinstance(value, kind)
    return value


def check(collection: Any) -> dict[str, set[str]]:
    """Ids of nodes by graph; every edge leads from an output that there is to an input."""
    from model_explorer.graph_builder import GraphCollection

    made = loaded(GraphCollection, collection)
    graphs = {graph.id: {node.id: node for node in graph.nodes} for graph in made.graphs}
    assert len(graphs) == len(made.graphs)
    for graph in made.graphs:
        nodes = graphs[graph.id]
        assert len(nodes) == len(graph.nodes)
        for node in graph.nodes:
            targets = [edge.targetNodeInputId for edge in node.incomingEdges]
            assert targets == [item.id for item in node.inputsMetadata]
            assert len({*targets}) == len(targets)
            for edge in node.incomingEdges:
                outputs = [item.id for item in nodes[edge.sourceNodeId].outputsMetadata]
                assert edge.sourceNodeOutputId in outputs
    return {id: {*nodes} for id, nodes in graphs.items()}


def check_data(data: Any, nodes: dict[str, set[str]]) -> None:
    """Node data is of nodes that there are, and the package writes the same."""
    from model_explorer.node_data_builder import GraphNodeData

    assert data
    for id, of in data.items():
        made = loaded(GraphNodeData, of)
        assert {*made.results} <= nodes[id]
        assert made.results
