"""Constants: immediate values, and packed bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, TensorType, Value
from pytest_ane.mlprogram.values import bits, elements, unpack
from tests.mlprogram.packages import Program, doubling, set_type

NARROW = [DType.UINT1, DType.UINT2, DType.UINT3, DType.UINT4, DType.UINT6, DType.INT4]


def pack(values: list[int], width: int) -> np.ndarray[Any, Any]:
    """The stream as one long integer: an independent way to say `lowest bits first`."""
    number = sum(v << (i * width) for i, v in enumerate(values))
    size = math.ceil(len(values) * width / 8)
    return np.frombuffer(number.to_bytes(size, "little"), np.uint8)


def test_bits_and_bytes() -> None:
    data = np.array([0x3F80, 0xC020], np.uint16).view(np.uint8)
    unpacked = unpack(data, DType.BF16, 2, "here")
    assert unpacked.tolist() == [1.0, -2.5]
    assert unpacked.dtype == np.float32
    # Any number but 0 is true, and no array holds another number under that name.
    unpacked = unpack(np.array([0, 1, 2, 255], np.uint8), DType.BOOL, 4, "here")
    assert unpacked.view(np.uint8).tolist() == [0, 1, 1, 1]
    assert [bits(DType(d)) for d in ("uint6", "int4", "bf16", "fp16", "fp64", "bool")] == [
        6, 4, 16, 16, 64, 8,
    ]  # fmt: skip
    with pytest.raises(ProgramError, match=r"^here: 1 bytes are too few for 3 of uint4\.$"):
        unpack(np.zeros(1, np.uint8), DType.UINT4, 3, "here")
    with pytest.raises(ProgramError, match=r"^here: a constant has the open shape fp16\[\?,2\]\.$"):
        elements(TensorType(DType.FP16, (None, 2)), "here")


@given(st.data(), st.sampled_from(NARROW))
def test_packing_and_unpacking_is_nothing(data: st.DataObject, dtype: DType) -> None:
    end, low = 2 ** bits(dtype), -8 if dtype is DType.INT4 else 0
    values = data.draw(st.lists(st.integers(low, low + end - 1), max_size=40))
    packed = pack([value % end for value in values], bits(dtype))
    assert unpack(packed, dtype, len(values), "here").tolist() == values


def constant(tmp_path: Path, value: Any, dtype: str) -> Value:
    program = doubling()
    program.const("c", value, dtype)
    operations = read_model(program.save(tmp_path)).program.walk()
    return next(op for op in operations if op.name == "c").attributes["val"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5, -2.0], "FLOAT16"),
        ([1.5, math.inf], "FLOAT32"),
        ([True, False], "BOOL"),
        ([-1, 2**31 - 1], "INT32"),
        ([-5, 7], "INT8"),
        (3, "INT32"),
    ],
)
def test_immediate_values(tmp_path: Path, value: Any, dtype: str) -> None:
    data = constant(tmp_path, value, dtype).data
    assert isinstance(data, np.ndarray)
    assert data.tolist() == value


def test_texts(tmp_path: Path) -> None:
    assert constant(tmp_path / "1", "valid", "STRING").data == "valid"
    assert constant(tmp_path / "2", ["a", "b"], "STRING").data == ("a", "b")


def nested(tmp_path: Path, fill: Callable[[Any, Any], object]) -> Value:
    """A constant whose type and value `fill` writes."""
    program = doubling()
    val = program.op("const", "c").attributes["val"]
    fill(val.type, val.immediateValue)
    operations = read_model(program.save(tmp_path)).program.walk()
    return next(op for op in operations if op.name == "c").attributes["val"]


def text(message: Any, value: str) -> None:
    set_type(message.type, "STRING", ())
    message.immediateValue.tensor.strings.values.append(value)


def test_tuples_and_dictionaries(tmp_path: Path) -> None:
    def members(kind: Any, value: Any, count: int = 2) -> None:
        for dtype in ("STRING", "INT32")[:count]:
            set_type(kind.tupleType.types.add(), dtype, ())
        for dtype, member in (("STRING", "a"), ("INT32", 7)):
            tensor = value.tuple.values.add().immediateValue.tensor
            (tensor.strings if dtype == "STRING" else tensor.ints).values.append(member)

    def table(kind: Any, value: Any) -> None:
        set_type(kind.dictionaryType.keyType, "STRING", ())
        set_type(kind.dictionaryType.valueType, "STRING", ())
        for key in "ab":
            pair = value.dictionary.values.add()
            text(pair.key, key)
            text(pair.value, key + key)

    data = nested(tmp_path / "1", members).data
    assert isinstance(data, tuple)
    assert (data[0], data[1].tolist()) == ("a", 7)
    assert nested(tmp_path / "2", table).data == (("a", "aa"), ("b", "bb"))
    with pytest.raises(ProgramError, match="holds no value of that type"):
        nested(tmp_path / "3", lambda kind, value: members(kind, value, 1))


def complaint(tmp_path: Path, dtype: str, field: str, content: Any, shape: tuple[int, ...]) -> str:
    program: Program = doubling()
    operation = program.op("const", "c", dtype, shape)
    val = operation.attributes["val"]
    set_type(val.type, dtype, shape)
    values = getattr(val.immediateValue.tensor, field)
    if field == "bytes":
        values.values = content
    else:
        values.values.extend(content)
    with pytest.raises(ProgramError) as caught:
        read_model(program.save(tmp_path))
    return str(caught.value).partition("const 'c': ")[2]


@pytest.mark.parametrize(
    ("dtype", "field", "content", "count", "sentence"),
    [
        *((*each, 1, "") for each in (
            ("FLOAT16", "strings", ["a"]), ("STRING", "ints", [1]), ("STRING", "bytes", b"a"),
            ("BFLOAT16", "ints", [1]), ("INT8", "ints", [300]), ("INT8", "floats", [1.5]),
            ("INT8", "floats", [math.nan]), ("INT4", "ints", [8]), ("UINT4", "ints", [16]),
            ("UINT1", "ints", [2]), ("FLOAT16", "floats", [65520.0]),
            ("FLOAT32", "doubles", [-1e39]), ("BOOL", "ints", [2]), ("UINT16", "ints", [-1]))),
        ("INT32", "ints", [1, 2], 3, "int32[3] holds 2 elements, not 3."),
        ("FLOAT16", "bytes", b"12345", 1, "fp16[1] holds 5 bytes, not 2."),
        ("STRING", "strings", ["a"], 2, "string[2] holds 1 texts, not 2."),
        ("STRING", "strings", ["a", "b"], 1, "string[1] holds 2 texts, not 1."),
        ("STRING", "strings", [], 1, "string[1] holds 0 texts, not 1."),
    ],
)  # fmt: skip
def test_values_that_the_type_cannot_hold(
    tmp_path: Path, dtype: str, field: str, content: Any, count: int, sentence: str
) -> None:
    text = complaint(tmp_path, dtype, field, content, (count,))
    assert text.startswith(f"a constant {sentence}")


def test_infinity_is_a_number_of_every_float(tmp_path: Path) -> None:
    def fill(kind: Any, value: Any) -> None:
        set_type(kind, "FLOAT16", (3,))
        value.tensor.floats.values.extend([math.inf, -math.inf, math.nan])

    np.testing.assert_array_equal(nested(tmp_path, fill).data, [math.inf, -math.inf, math.nan])


def test_lists_and_their_members_in_the_weights_file(tmp_path: Path) -> None:
    """Nobody would load them."""
    for sentence, place in (
        ("a constant of type .* in a weights file", lambda val: val),
        ("a part of a constant lies in a weights",
         lambda val: val.immediateValue.list.values.add()),
    ):  # fmt: skip
        program = doubling()
        val = program.op("const", "c").attributes["val"]
        set_type(val.type.listType.type, "FLOAT16", (4,))
        blob = place(val).blobFileValue
        blob.fileName, blob.offset = "@model_path/weights/weight.bin", 64
        with pytest.raises(ProgramError, match=rf"const 'c': {sentence}"):
            read_model(program.save(tmp_path / sentence[2:6]))
