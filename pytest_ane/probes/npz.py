"""Arrays of an `.npz` file that may come from anywhere: nothing unpickled, no size taken on trust.

`numpy.load` allocates an array of the size that an entry's header declares before it reads any of
it, and takes entries of any number and size.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from pytest_ane.mlprogram.arrays import Array, Arrays

_MOST_ENTRIES = 1 << 16
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path, most: int) -> Iterator[tuple[str, Array]]:
    """The arrays of an `.npz` file by name, in the machine's own byte order.

    Args:
        path: the file.
        most: bytes that all entries may have together, unpacked.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file, an entry is no array or occurs twice, or it is too large.
    """
    try:
        with ZipFile(path) as file:
            entries = file.infolist()
            names = [entry.filename for entry in entries]
            size = sum(entry.file_size for entry in entries)
            if len(entries) > _MOST_ENTRIES or size > most:
                raise ValueError(f"{len(entries):,} arrays of {size:,} bytes are too many")
            if len({*names}) < len(names):
                raise ValueError("two arrays have one name")
            for entry in entries:
                if not entry.filename.endswith(".npy"):
                    raise ValueError(f"{entry.filename!r} is no array")
                yield entry.filename.removesuffix(".npy"), _array(file, entry)
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(str(error) or type(error).__name__) from None


def _array(file: ZipFile, entry: ZipInfo) -> Array:
    """An entry's array, if it has as many bytes as its header says."""
    with file.open(entry) as content:
        version = np.lib.format.read_magic(content)  # type: ignore[no-untyped-call]
        if version not in _HEADERS:
            raise ValueError(f"{entry.filename!r} has the format {version}; 1.0 and 2.0 are read")
        shape, by_columns, dtype = _HEADERS[version](content)  # type: ignore[no-untyped-call]
        if dtype.hasobject or dtype.names or any(extent < 0 for extent in shape):
            raise ValueError(f"{entry.filename!r} holds {dtype}, no numbers")
        size = math.prod(shape) * dtype.itemsize
        if content.tell() + size != entry.file_size:
            raise ValueError(f"{entry.filename!r} declares {size:,} bytes and holds others")
        array = np.frombuffer(content.read(), dtype).reshape(
            shape, order="F" if by_columns else "C"
        )
        native: Array = array.astype(dtype.newbyteorder("="))
        return native


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays by name; the same arrays give the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    with ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                _write(entry, np.asarray(array))


def _write(entry: Any, array: Array) -> None:
    np.lib.format.write_array(  # type: ignore[no-untyped-call]
        entry, array, version=(1, 0), allow_pickle=False
    )
