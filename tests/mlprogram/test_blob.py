"""Weights on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram import blob
from pytest_ane.mlprogram.blob import blob_writer
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, MLModel, TensorType, Value
from tests.mlprogram.packages import CODES, Program, Weights, doubling, weight_file


def loaded(program: Program, tmp_path: Path) -> tuple[MLModel, Value]:
    model = read_model(program.save(tmp_path))
    operation = next(op for op in model.program.walk() if op.name == "c")
    return model, operation.attributes["val"]


def program_with(dtype: str, shape: tuple[int, ...], data: bytes, **faults: Any) -> Program:
    program = doubling()
    program.blob("c", dtype, shape, data, **faults)
    return program


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("FLOAT16", np.array([1.5, -2, 65504], np.float16)),
        ("FLOAT32", np.array([1.5, np.inf], np.float32)),
        ("INT8", np.array([-128, 127], np.int8)),
        ("UINT8", np.array([0, 255], np.uint8)),
        ("INT16", np.array([-5, 5], np.int16)),
        ("UINT16", np.array([65535], np.uint16)),
        ("INT32", np.array([-(2**31)], np.int32)),
        ("UINT32", np.array([2**32 - 1], np.uint32)),
    ],
)
def test_whole_bytes(tmp_path: Path, dtype: str, values: Any) -> None:
    array = blob.load(*loaded(program_with(dtype, values.shape, values.tobytes()), tmp_path))
    assert array.dtype == values.dtype
    assert array.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("dtype", "data", "values"),
    [
        ("INT4", "f87302", [-8, -1, 3, 7, 2]),
        ("UINT1", "0d01", [1, 0, 1, 1, 0, 0, 0, 0, 1]),
        ("UINT2", "9303", [3, 0, 1, 2, 3]),
        ("UINT3", "4734", [7, 0, 1, 2, 3]),
        ("UINT4", "21430f", [1, 2, 3, 4, 15]),
        ("UINT6", "3f100803", [63, 0, 1, 2, 3]),
    ],
)
def test_narrow_types_as_coremltools_writes_them(
    tmp_path: Path, dtype: str, data: str, values: list[int]
) -> None:
    program = program_with(dtype, (len(values),), bytes.fromhex(data))
    assert blob.load(*loaded(program, tmp_path)).tolist() == values


def test_loading_neither_copies_nor_lets_write(tmp_path: Path) -> None:
    model, value = loaded(program_with("FLOAT16", (2, 2), bytes(8)), tmp_path)
    first, again = blob.load(model, value), blob.load(model, value)
    assert np.shares_memory(first, again)
    assert not first.flags.writeable
    assert first.shape == (2, 2)


def test_a_changed_file_is_seen(tmp_path: Path) -> None:
    program = program_with("UINT8", (1,), b"\x01")
    model, value = loaded(program, tmp_path)
    assert blob.load(model, value).tolist() == [1]
    changed = program_with("UINT8", (1,), b"\x02").weights.to_bytes()
    file, fresh = weight_file(Path(model.path)), tmp_path / "fresh.bin"
    fresh.write_bytes(changed)
    shutil.copystat(file, fresh)  # As a copy has it: size and time are those of the old file.
    fresh.replace(file)
    assert blob.load(model, value).tolist() == [2]


def test_packed_bytes_as_they_lie(tmp_path: Path) -> None:
    model, value = loaded(program_with("UINT4", (5,), bytes.fromhex("21430f")), tmp_path)
    assert bytes(blob.packed(model, value)).hex() == "21430f"


def complaint(tmp_path: Path, program: Program) -> str:
    package = program.save(tmp_path)
    assert read_model(package, weights=False)
    with pytest.raises(ProgramError) as caught:
        read_model(package)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(weight_file(package)), "W").replace(str(package), "P")


LATE = "W: has 320 bytes, too few for the blob at 192, which ends at "


@pytest.mark.parametrize(
    ("data", "fault", "sentence"),
    [
        (bytes(4), {"offset": 6400}, "W: has 320 bytes, too few for the blob at 6400; the file is "
         "cut short or belongs to another package."),
        (bytes(4), {"sentinel": 0}, "W: no blob at offset 192 (its mark is missing)."),
        (bytes(4), {"size": 2**63}, f"{LATE}9,223,372,036,854,776,064; the file is cut short."),
        (bytes(4), {"size": 2**64 - 1},
         f"{LATE}18,446,744,073,709,551,871; the file is cut short."),
        (bytes(4), {"start": 6400}, f"{LATE}6,404; the file is cut short."),
        (bytes(4), {"start": 257},
         "W: the blob at 192 begins at 257, which is no multiple of 64."),
        (b"abc", {}, "W, offset 192: the blob has 3 bytes, fp16[2] takes 4."),
        (b"abcdef", {}, "W, offset 192: the blob has 6 bytes, fp16[2] takes 4."),
        # Two bytes are two bytes, but fp16 read as int16 would be other numbers.
        (bytes(4), {"code": CODES["INT16"]},
         "W, offset 192: the blob is of type number 6, the program says fp16[2]."),
    ],
)  # fmt: skip
def test_a_blob_that_is_not_whole(
    tmp_path: Path, data: bytes, fault: dict[str, int], sentence: str
) -> None:
    assert complaint(tmp_path, program_with("FLOAT16", (2,), data, **fault)) == sentence


def test_files_and_types_that_hold_no_blob(tmp_path: Path) -> None:
    program = doubling()
    program.weights.version = 3
    assert complaint(tmp_path, program) == "W: weights of format version 3; 1 and 2 are known."
    package = doubling().save(tmp_path / "empty")
    weight_file(package).write_bytes(b"")
    with pytest.raises(ProgramError, match="has 0 bytes, which is no weights file"):
        read_model(package)
    value = Value(TensorType(DType.STRING), "a")
    with pytest.raises(ProgramError, match=r"type string\[\] has no place in a weights file"):
        blob.byte_size(value)


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_the_format(tmp_path: Path, version: int) -> None:
    """Their headers differ in the number alone, as far as published tools read them."""
    program = Program()
    program.weights = Weights(version)
    program.input("x", (1,))
    program.blob("w", "FLOAT16", (3,), np.float16([1, 2, 3]).tobytes())
    program.op("identity", "y", shape=(1,), x="x")
    program.output("y")
    model = read_model(program.save(tmp_path))
    (value,) = (op.attributes["val"] for op in model.main.walk() if op.op == "const")
    assert blob.load(model, value).tolist() == [1, 2, 3]


def test_a_file_as_it_is_read(tmp_path: Path) -> None:
    expected = Weights()
    offsets = [expected.add(b"\x01" * 70, CODES["UINT8"]), expected.add(b"\x02" * 64, 1)]
    with blob_writer(tmp_path / "weight.bin") as writer:
        assert writer.add(DType.UINT8, 70, np.full(70, 1, np.uint8)) == offsets[0]
        assert writer.add(DType.FP16, 32, np.full(64, 2, np.uint8)) == offsets[1]
    assert (tmp_path / "weight.bin").read_bytes() == expected.to_bytes()


def test_what_is_written(tmp_path: Path) -> None:
    with blob_writer(tmp_path / "weight.bin") as writer:
        offset = writer.add(DType.UINT3, 5, np.array([0xFF, 0x7F], np.uint8))
    data = (tmp_path / "weight.bin").read_bytes()
    assert offset == 64
    assert len(data) == 64 + 64 + 2
    assert int.from_bytes(data[offset + 24 : offset + 32], "little") == 1
    with blob_writer(tmp_path / "weight.bin"):
        pass
    assert (tmp_path / "weight.bin").read_bytes() == bytes([0, 0, 0, 0, 2, 0, 0, 0])
