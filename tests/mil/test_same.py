"""Equality of programs: what counts, what does not, and where the first difference is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pytest_ane.mil import read_model
from pytest_ane.mil.records import Program
from pytest_ane.mil.same import differences, equal
from pytest_ane.mil.text import parse
from tests.mil.packages import Program as Package
from tests.mil.packages import doubling, weight_file
from tests.mil.programs import PROGRAMS

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


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_a_program_equals_itself(program: Program) -> None:
    assert equal(program, program)


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
    ("old", "new", "difference"),
    [
        ("main<", "other<", "program: functions: ['main'] against ['other']."),
        ("ios18", "ios17", "function 'main': opset: CoreML8 against CoreML7."),
        ("fp16 h", "fp32 h", "function 'main': input 'h': fp16[] against fp32[]."),
        ("x, fp16 h)", "x, fp16 h, fp16 g)",
         "function 'main': inputs: ['h', 'x'] against ['g', 'h', 'x']."),
        ("[0, nan]", "[1, nan]", "function 'main', const 'c': val: values of fp16[2] differ."),
        ("[0, nan]", "[-0x0p+0, nan]",
         "function 'main', const 'c': val: values of fp16[2] differ."),
        ("uint64(64)", "uint64(128)", "function 'main', const 'w': val: values of fp16[2] differ."),
        ("add(", "sub(", "function 'main', add 'y': operation: add against sub."),
        ("x = c,", "x = w,", "function 'main', add 'y': x: c against w."),
        ("x = c,", "x = fp16(1),", "function 'main', add 'y': x: c against a constant fp16[]."),
        ("x = c,", "z = c,", "function 'main', add 'y': parameters: ['x', 'y'] against "
         "['y', 'z']."),
        ('"y"', '"v"', "function 'main', add 'y': name: values of string[] differ."),
        (', a = string("b")', "", "function 'main', add 'y': attributes: ['a', 'name'] against "
         "['name']."),
        ("relu(", "abs(", "function 'main', cond 'z', block 1, relu 'q': operation: relu against "
         "abs."),
        (" () { } -> (y)", "", "function 'main', cond 'z': number of blocks: 2 against 1."),
        ("-> (x);", "-> (y);", "function 'main', cond 'z', block 1: outputs: ('x',) against "
         "('y',)."),
        ("[1, 2]", "[1, 2, 3]", None),
        ("u = (x, y)", "u = (x)", "function 'main', list 'l': u: number of arguments: 2 against "
         "1."),
        ("(z, l)", "(l, z)", "function 'main': outputs: ('z', 'l') against ('l', 'z')."),
    ],
)  # fmt: skip
def test_what_counts(old: str, new: str, difference: str | None) -> None:
    (first, *_) = compared((old, new))
    if difference is not None:
        assert first == difference


def test_the_first_few() -> None:
    many = [("fp16 h", "fp32 h"), ("add(", "sub("), ("(z, l)", "(l, z)")]
    assert len(compared(*many)) == 3
    other = TEXT.replace("add(", "sub(").replace("(z, l)", "(l, z)")
    assert len(differences(parse(TEXT), parse(other), most=1)) == 1
    assert not equal(parse(TEXT), parse(other))


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
    assert equal(a, b)
    assert not equal(a.program, b.program)
    c = model(tmp_path / "c", data=(0, 1, 2, 3))
    assert differences(a, c) == ["function 'main', const 'w': val: values of fp16[4] differ."]
    assert equal(a.program, c.program)


def test_a_constant_in_the_program_or_in_a_file_is_the_same(tmp_path: Path) -> None:
    package = doubling()
    del package.block.operations[0]
    operation = package.const("w", np.arange(4), "FLOAT16")
    package.block.operations.remove(operation)
    package.block.operations.insert(0, operation)
    inline = read_model(package.save(tmp_path / "inline"))
    stored = read_model(doubling().save(tmp_path / "stored"))
    assert equal(inline, stored)
    assert weight_file(Path(stored.path)).exists()
    assert not equal(inline.program, stored.program)
