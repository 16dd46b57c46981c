"""Weights on disk: blob storage format v2 of `weights/weight.bin`, memory-mapped.

A file begins with 64 bytes (count and version, uint32 each). A blob's metadata, 64 bytes at the
offset the program names, are: sentinel 0xDEADBEEF and data type (uint32 each), size in bytes,
offset of the data, and padding in bits (uint64 each). Source: MILBlob/Blob/StorageFormat.hpp in
coremltools' repository.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.checks import stays_inside
from pytest_ane.mlprogram.digests import FileState, file_state
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import Blob, DType, MLModel, TensorType, Value
from pytest_ane.mlprogram.values import bits, elements, unpack

_SENTINEL = 0xDEADBEEF
_HEADER = struct.Struct("<II")
_METADATA = struct.Struct("<IIQQQ")
_ALIGNMENT = 64
_PREFIX = "@model_path/weights/"

# MILBlob's BlobDataType; types without a number never lie in a weights file.
_NUMBERS = {
    DType.FP16: 1, DType.FP32: 2, DType.UINT8: 3, DType.INT8: 4, DType.BF16: 5, DType.INT16: 6,
    DType.UINT16: 7, DType.INT4: 8, DType.UINT1: 9, DType.UINT2: 10, DType.UINT4: 11,
    DType.UINT3: 12, DType.UINT6: 13, DType.INT32: 14, DType.UINT32: 15,
}  # fmt: skip


def load(model: MLModel, value: Value) -> Array:
    """A constant as an array; elements narrower than a byte come unpacked as uint8 or int8.

    Arrays of whole bytes are views of the mapped file: read-only, not copied.
    """
    if not isinstance(value.data, Blob):
        return np.asarray(value.data)
    kind, data = _tensor_type(value), _checked(model, value)
    where = str(_path(model, value.data))
    flat: Array = unpack(data, kind.dtype, elements(kind, where), where)
    return flat.reshape([int(d or 0) for d in kind.shape])


def packed(model: MLModel, value: Value) -> npt.NDArray[np.uint8]:
    """A blob's bytes as they are stored, for decoders that need no unpacked copy."""
    if not isinstance(value.data, Blob):
        return np.frombuffer(np.asarray(value.data).tobytes(), np.uint8)
    return _checked(model, value)


def byte_size(value: Value, where: str = "constant") -> int:
    """Bytes that a tensor constant takes as stored, from its type alone."""
    kind = _tensor_type(value)
    if kind.dtype is DType.STRING:
        raise ProgramError(f"A constant of type {kind} has no place in a weights file.")
    return -(-elements(kind, where) * bits(kind.dtype) // 8)


def blob_bytes(model: MLModel) -> dict[Blob, int]:
    """Bytes of every blob that a program names, as stored."""
    return {blob: byte_size(value) for blob, value in _blobs(model)}


def check_blobs(model: MLModel) -> None:
    """Check that every blob the program names is whole; raises `ProgramError` at the first."""
    for _, value in _blobs(model):
        _checked(model, value)


def _checked(model: MLModel, value: Value) -> npt.NDArray[np.uint8]:
    """A blob's bytes, of the type and the size that the program gives them."""
    kind, blob = _tensor_type(value), value.data
    assert isinstance(blob, Blob)
    number, data = _data(model, blob)
    where = f"{_path(model, blob)}, offset {blob.offset}"
    if number != _NUMBERS.get(kind.dtype):
        says = f"the blob is of type number {number}, the program says {kind}"
        raise ProgramError(f"{where}: {says}.")
    if data.size != (size := byte_size(value, where)):
        raise ProgramError(f"{where}: the blob has {data.size} bytes, {kind} takes {size}.")
    return data


def _blobs(model: MLModel) -> Iterator[tuple[Blob, Value]]:
    for op in model.program.walk():
        arguments = (argument for group in op.inputs.values() for argument in group)
        for value in (*op.attributes.values(), *arguments):
            if isinstance(value, Value) and isinstance(value.data, Blob):
                yield value.data, value


def _tensor_type(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise ProgramError(f"A constant of type {value.type} has no place in a weights file.")
    return value.type


def _path(model: MLModel, blob: Blob) -> Path:
    name = blob.file.removeprefix(_PREFIX)
    path = Path(model.weights) / name.replace("\0", "?")
    if name == blob.file or not stays_inside(name):
        raise ProgramError(f"{model.path}: names weights outside the package: {blob.file!r}.")
    return path


def _data(model: MLModel, blob: Blob) -> tuple[int, npt.NDArray[np.uint8]]:
    path = _path(model, blob)
    try:
        state = file_state(path)
    except (OSError, ValueError):
        says = "the weights file is missing; copy the whole package"
        raise ProgramError(f"{path}: {says}.") from None
    file = _map(path, state)
    end, few = blob.offset + _ALIGNMENT, f"{path}: has {file.size:,} bytes, too few for the blob at"
    if blob.offset % _ALIGNMENT or end > file.size:
        fix = "the file is cut short or belongs to another package"
        raise ProgramError(f"{few} {blob.offset}; {fix}.")
    sentinel, number, size, offset, _ = _METADATA.unpack_from(file[blob.offset : end].tobytes())
    if sentinel != _SENTINEL:
        raise ProgramError(f"{path}: no blob at offset {blob.offset} (its mark is missing).")
    if offset % _ALIGNMENT:
        raise ProgramError(
            f"{path}: the blob at {blob.offset} begins at {offset}, which is no multiple of 64."
        )
    if offset + size > file.size:
        ends = f"which ends at {offset + size:,}; the file is cut short"
        raise ProgramError(f"{few} {blob.offset}, {ends}.")
    data: npt.NDArray[np.uint8] = file[offset : offset + size]
    return number, data


@lru_cache(maxsize=8)
def _map(path: Path, state: FileState) -> npt.NDArray[np.uint8]:
    """The file, mapped; its `state` is part of the key, so that a changed file is seen."""
    size = state[0]
    if size < _ALIGNMENT:
        raise ProgramError(f"{path}: has {size} bytes, which is no weights file.")
    try:
        file: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read ({error.strerror}).") from None
    if bytes(file[:24]).startswith(b"version https://git-lfs"):
        raise ProgramError(f"{path}: is a Git LFS pointer, not the weights; run: git lfs pull")
    _, version = _HEADER.unpack_from(file[: _HEADER.size].tobytes())
    if version not in (1, 2):
        raise ProgramError(f"{path}: weights of format version {version}; 1 and 2 are known.")
    return file


_VERSION = 2


class BlobWriter:
    """Appends blobs to a file; made by `blob_writer`."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.count, self.end = file, 0, 0
        self._put(_HEADER.pack(0, _VERSION))

    def add(self, dtype: DType, elements: int, data: npt.NDArray[np.uint8]) -> int:
        """Append `elements` of a type, packed where they are narrow; returns the blob's offset."""
        offset = self._put(b"")
        at = offset + _ALIGNMENT
        unused = 8 * len(data) - elements * bits(dtype)
        self._put(_METADATA.pack(_SENTINEL, _NUMBERS[dtype], len(data), at, unused))
        self._put(data.data)
        self.count += 1
        return offset

    def _put(self, data: bytes | memoryview) -> int:
        """Write at the next multiple of 64, which is returned; nothing follows the last blob."""
        padding = -self.end % _ALIGNMENT
        self.file.write(bytes(padding))
        self.file.write(data)
        self.end += padding + len(data)
        return self.end - len(data)


@contextmanager
def blob_writer(path: Path) -> Iterator[BlobWriter]:
    """A new weights file, complete once the block has ended."""
    with path.open("wb") as file:
        writer = BlobWriter(file)
        yield writer
        file.seek(0)
        file.write(_HEADER.pack(writer.count, _VERSION))
