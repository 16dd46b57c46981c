"""Programs as graphs with node data, as Model Explorer's own records read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pytest_ane.gates.verdict import Column, Table, Verdict
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.records import (
    Block,
    DType,
    Function,
    Named,
    Operation,
    Ref,
    TensorType,
    Value,
)
from pytest_ane.report.html.subjects import Judged, Subject
from pytest_ane.report.model_explorer import collection, graph, node_data
from pytest_ane.report.run import Row
from tests.hostile import HOSTILE, check_lines
from tests.mlprogram.programs import functions
from tests.packages import save_conv
from tests.report.explorer import check, check_data

FP16 = TensorType(DType.FP16, (1, 64, None))
BOOL = TensorType(DType.BOOL, ())


def op(
    kind: str, name: str, *inputs: str, blocks: tuple[Block, ...] = (), **more: Any
) -> Operation:
    refs = {f"x{i}": (Ref(each),) for i, each in enumerate(inputs)}
    return Operation(kind, refs | more, (Named(name, FP16),), {}, blocks)


def of(*operations: Operation, outputs: tuple[str, ...] = ("y",)) -> dict[str, Any]:
    made = graph(
        "m:L0", Function("main", "CoreML8", (Named("x", FP16),), Block((), operations, outputs))
    )
    check({"label": "m:L0", "graphs": [made]})
    return made


def node(made: dict[str, Any], id: str) -> dict[str, Any]:
    (found,) = (each for each in made["nodes"] if each["id"] == id)
    return found


def sources(made: dict[str, Any], id: str) -> list[str]:
    return [edge["sourceNodeId"] for edge in node(made, id)["incomingEdges"]]


def attributes(made: dict[str, Any], id: str) -> dict[str, str]:
    return {each["key"]: each["value"] for each in node(made, id)["attrs"]}


@pytest.mark.drawn
@pytest.mark.slow
def test_a_package_s_operations_and_its_weight(tmp_path: Path) -> None:
    save_conv(tmp_path / "conv.mlpackage")
    made = collection("m:L0", read_any(tmp_path / "conv.mlpackage", weights=False))
    nodes = check(made)
    assert made["label"] == "m:L0"
    assert [*nodes] == ["m:L0"]
    (graph,) = made["graphs"]
    labels = [each["label"] for each in graph["nodes"]]
    assert labels[0] == "input"
    assert labels[-1] == "output"
    assert "conv" in labels
    (conv,) = (each for each in graph["nodes"] if each["label"] == "conv")
    # Small constants are attributes, weights nodes.
    assert attributes(graph, conv["id"])["strides"] == "[1, 1]"
    weights = {each["id"] for each in graph["nodes"] if each["label"] == "const"}
    assert weights
    assert weights < {*sources(graph, conv["id"])}
    (meta,) = conv["outputsMetadata"]
    texts = {each["key"]: each["value"] for each in meta["attrs"]}
    assert texts["tensor_name"] == conv["id"]
    assert "x" in texts["shape"]


def test_results_scopes_and_names_are_told_apart() -> None:
    two = Operation("split", {"x": (Ref("x"),)}, (Named("a", FP16), Named("b", FP16)))
    made = of(two, op("add", "y", "b", "a"))
    edges = node(made, "y")["incomingEdges"]
    assert [edge["sourceNodeId"] for edge in edges] == ["a", "a"]
    assert [edge["sourceNodeOutputId"] for edge in edges] == ["1", "0"]
    made = of(op("conv", "layers.3.q_proj", "x"), op("add", "y", "layers.3.q_proj"))
    assert node(made, "layers.3.q_proj")["namespace"] == "layers/3"
    assert node(made, "y")["namespace"] == ""
    inner = Block((), (op("mul", "a", "x"),), ("a",))
    made = of(op("cond", "b", blocks=(inner, inner)), op("add", "y", "b"))
    assert {"a", "a #2"} <= {each["id"] for each in made["nodes"]}
    assert sources(made, "b") == ["a", "a #2"]
    table = Value(TensorType(DType.FP16, (64,)), np.zeros(64, np.float16))
    made = of(op("add", "y", "x", table=(table,)))
    assert attributes(made, "y")["table"] == "fp16 64"


def test_a_loop_is_a_layer_with_its_variables() -> None:
    inner = Block((Named("i", FP16),), (op("mul", "j", "i", "x"),), ("j",))
    ends = Block((Named("c", FP16),), (op("less", "more", "c"),), ("more",))
    loop = op("while_loop", "y", blocks=(ends, inner), loop_vars=(Ref("x"),))
    made = of(loop)
    assert {node(made, id)["namespace"] for id in ("i", "j", "more")} == {"y"}
    assert sources(made, "i") == ["x"]
    assert sources(made, "j") == ["i", "x"]
    assert sources(made, "y") == ["x", "more", "j"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(function=functions())
def test_every_program_has_a_sound_graph(function: Function) -> None:
    made = {"label": "l", "graphs": [graph("g", function)]}
    check(json.loads(json.dumps(made, allow_nan=False)))


@settings(max_examples=40, deadline=None)
@given(text=HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    made = of(op(text, text, "x"), op("add", "y", text))
    check_lines([each["id"] for each in made["nodes"]])
    check_lines([each["namespace"] for each in made["nodes"]])


def table(name: str, heads: tuple[str, ...], *rows: tuple[Any, ...]) -> Table:
    return Table(name, tuple(map(Column, heads)), rows, name)


def subject(*tables: Table) -> Subject:
    verdict = Verdict("placement", "m:L0", tables=tables)
    return Subject("m:L0", (), (Judged(Row("placement", "m:L0", "passed", ""), verdict),))


PROGRAM = table(
    "program",
    ("op", "type", "function", "forecast", "predicted", "recorded", "predicted time", "why"),
    ("a", "conv", "main", "eligible", "ANE", None, None, ""),
    ("b", "gather", "main", "ineligible", None, None, None, "R012"),
    ("y", "add", "main", "eligible", "ANE", "CPU", None, ""),
    ("gone", "add", "main", "eligible", "ANE", "CPU", None, ""),
)
BLAME = table("blame.operations", ("op", "own error"), ("a", 0.01), ("y", "NaN"))
HAZARDS = table(
    "hazards", ("operation", "hazard", "value", "limit"), ("a", "largest |sum|", 3e4, 32768.0)
)


def test_node_data_is_of_the_graph_s_nodes() -> None:
    made = of(op("conv", "a", "x"), op("gather", "b", "a"), op("add", "y", "b"))
    data = node_data(subject(PROGRAM, BLAME, HAZARDS), [made])
    nodes = {"m:L0": {each["id"] for each in made["nodes"]}}
    for each in data.values():
        check_data(json.loads(json.dumps(each, allow_nan=False)), nodes)
    values = {
        word: {id: result["value"] for id, result in each["m:L0"]["results"].items()}
        for word, each in data.items()
    }
    assert values == {
        "unit": {"a": "predicted ANE", "b": "forecast ineligible", "y": "recorded CPU"},
        "error": {"a": 0.01, "y": "nan"},
        "hazards": {"a": "largest |sum| 3e+04 of 3.28e+04"},
    }
    colours = [result.get("bgColor") for result in data["unit"]["m:L0"]["results"].values()]
    assert len({*colours}) == 3
