"""Equality of programs: what counts, what does not, and where the first difference is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.parse import parse
from tests.mlprogram.packages import Program as Package
from tests.mlprogram.packages import doubling, weight_file
from tests.mlprogram.same import differences

TEXT = """
program(1.3) {
    func main<ios18>(tensor<fp16, [2]> x, fp16 h) {
        tensor<fp16, [2]> c = const()[val = tensor<fp16, [2]>([0, nan])];
        tensor<fp16, [2]> w = const()[val = tensor<fp16, [2]>(BLOBFILE(
            path = string("@model_path/weights/w.bin"), offset = uint64(64)))];
        tensor<fp16, [2]> y = add(x = c, y = w)[name = string("y"), a = string("b")];
        tensor<fp16, [2]> z = cond(pred = h) () { } -> (y) () { fp16 q = relu(x = h); } -> (x);
        tensor<fp16, [2]> l = list(v = list<int32, ?>([1, 2]), u = (x, y));
    } -> (z, l);
}
"""


def compared(*replacements: tuple[str, str]) -> list[str]:
    other = TEXT
    for old, new in replacements:
        assert old in other
        other = other.replace(old, new)
    return differences(parse(TEXT), parse(other))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tensor<fp16, [2]> x, fp16 h", "fp16 h, tensor<fp16, [2]> x"),
        ("x = c, y = w", "y = w, x = c"),
        ('name = string("y"), a = string("b")', 'a = string("b"), name = string("y")'),
        ("= add(", "= ios17.add("),
        ("main<ios18>", "main<CoreML8>"),
        ("[0, nan]", "[0x0p+0, -nan]"),
    ],
)
def test_what_does_not_count(old: str, new: str) -> None:
    assert compared((old, new)) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("main<", "other<", "program.functions:"),
        ("ios18", "ios17", "program.functions.main.opset:"),
        ("fp16 h", "fp32 h", "program.functions.main.inputs.h:"),
        ("x, fp16 h)", "x, fp16 h, fp16 g)", "program.functions.main.inputs:"),
        ("[0, nan]", "[1, nan]", "[0] const.attributes.val.data:"),
        ("[0, nan]", "[-0x0p+0, nan]", "[0] const.attributes.val.data:"),
        ("uint64(64)", "uint64(128)", "[1] const.attributes.val.data.offset:"),
        ("add(", "sub(", "[2] add.op: add against sub"),
        ("x = c,", "x = w,", "[2] add.inputs.x[0].name: c against w"),
        ("x = c,", "x = fp16(1),", "[2] add.inputs.x[0]:"),
        ("x = c,", "z = c,", "[2] add.inputs:"),
        ('"y"', '"v"', "[2] add.attributes.name.data: y against v"),
        (', a = string("b")', "", "[2] add.attributes:"),
        ("relu(", "abs(", "[3] cond.blocks[1].operations[0] relu.op: relu against abs"),
        (" () { } -> (y)", "", "[3] cond.blocks:"),
        ("-> (x);", "-> (y);", "[3] cond.blocks[1].outputs[0]: x against y"),
        ("[1, 2]", "[1, 2, 3]", "[4] list.inputs.v[0].data:"),
        ("u = (x, y)", "u = (x)", "[4] list.inputs.u:"),
        ("(z, l)", "(l, z)", "block.outputs[0]: z against l"),
    ],
)
def test_what_counts(old: str, new: str, place: str) -> None:
    assert place in compared((old, new))[0]


def model(folder: Path, change: Any = None, data: Any = (0, 1, 2, math.inf)) -> Any:
    package = Package()
    package.input("x", (4,))
    if change:
        change(package)
    package.blob("w", "FLOAT16", (4,), np.array(data, np.float16).tobytes())
    package.op("add", "y", shape=(4,), x="x", y="w")
    package.output("y")
    return read_model(package.save(folder))


def test_blobs_of_models_are_compared_by_content(tmp_path: Path) -> None:
    a = model(tmp_path / "a")
    b = model(tmp_path / "b", lambda p: p.weights.add(b"1234", 1))
    assert a.program.main.block.operations[0].attributes["val"].data != (
        b.program.main.block.operations[0].attributes["val"].data
    )
    assert differences(a, b) == []
    assert differences(a.program, b.program)
    c = model(tmp_path / "c", data=(0, 1, 2, 3))
    assert len(differences(a, c)) == 1
    assert differences(a.program, c.program) == []


def test_a_constant_in_the_program_or_in_a_file_is_the_same(tmp_path: Path) -> None:
    package = doubling()
    del package.block.operations[0]
    operation = package.const("w", np.arange(4), "FLOAT16")
    package.block.operations.remove(operation)
    package.block.operations.insert(0, operation)
    inline = read_model(package.save(tmp_path / "inline"))
    stored = read_model(doubling().save(tmp_path / "stored"))
    assert differences(inline, stored) == []
    assert weight_file(Path(stored.path)).exists()
    assert differences(inline.program, stored.program)
