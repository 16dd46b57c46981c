"""Programs as text: what is written reads back as the same program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.parse import parse, write
from pytest_ane.mlprogram.records import (
    Blob,
    Block,
    DType,
    Function,
    Named,
    Operation,
    Program,
    Ref,
    TensorType,
    Value,
)
from pytest_ane.mlprogram.values import quote, unquote
from tests.mlprogram.programs import PROGRAMS, TEXTS
from tests.mlprogram.same import differences

SCALAR = TensorType(DType.FP16)
PAIR = TensorType(DType.FP16, (2,))


def small(opset: str) -> Program:
    name = Value(TensorType(DType.STRING), "c")
    half = Value(SCALAR, np.array(0.5, np.float16))
    weight = Value(PAIR, Blob("@model_path/weights/weight.bin", 64))
    operations = (
        Operation("const", {}, (Named("c", SCALAR),), {"name": name, "val": half}),
        Operation("const", {}, (Named("w", PAIR),), {"val": weight}),
        Operation("concat", {"values": (Ref("x"), Ref("w"))}, (Named("y", PAIR),)),
        Operation("write_state", {"input": (Ref("y"),)}, ()),
    )
    block = Block((), operations, ("y",))
    return Program({"main": Function("main", opset, (Named("x", PAIR),), block)})


def test_the_words_of_ios_17() -> None:
    assert (
        write(small("CoreML7"))
        == """\
program(1.0)
{
    func main<ios17>(tensor<fp16, [2]> x) {
        tensor<fp16, []> c = const()[name = tensor<string, []>("c"), \
val = tensor<fp16, []>(0x1p-1)];
        tensor<fp16, [2]> w = const()[val = tensor<fp16, [2]>(BLOBFILE(\
path = tensor<string, []>("@model_path/weights/weight.bin"), offset = tensor<uint64, []>(64)))];
        tensor<fp16, [2]> y = concat(values = (x, w));
        write_state(input = y);
    } -> (y);
}
"""
    )


def test_the_words_of_ios_18() -> None:
    text = write(small("CoreML8"))
    assert text.startswith("program(1.3)\n")
    assert '        fp16 c = const()[name = string("c"), val = fp16(0x1p-1)];\n' in text
    assert 'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64))' in text


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_what_is_written_reads_back(program: Program) -> None:
    assert differences(parse(write(program)), program) == []


@given(TEXTS)
def test_quoting_and_unquoting_is_nothing(text: str) -> None:
    quoted = quote(text)
    assert unquote(quoted) == text
    assert quoted.startswith('"')
    assert not any(ord(c) < 32 for c in quoted)


@pytest.mark.parametrize("name", ["", "a b", "1a", "a-b", "ä"])
def test_a_name_the_text_cannot_have(name: str) -> None:
    program = small("CoreML8")
    function = replace(program.main, name=name)
    with pytest.raises(ProgramError, match="is no name that the text of a program can have"):
        write(Program({name: function}))
