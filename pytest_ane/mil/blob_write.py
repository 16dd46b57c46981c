"""A weights file as it is written: blob storage format v2, one blob at a time.

The layout is described in `blob`; files come out byte for byte as coremltools writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pytest_ane.mil.blob import ALIGNMENT, HEADER, METADATA, NUMBERS, SENTINEL
from pytest_ane.mil.records import DType
from pytest_ane.mil.values import bits

_VERSION = 2


class BlobWriter:
    """Appends blobs to a file; made by `blob_writer`."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.count, self.end = file, 0, 0
        self._put(HEADER.pack(0, _VERSION))

    def add(self, dtype: DType, elements: int, data: npt.NDArray[np.uint8]) -> int:
        """Append `elements` of a type, packed where they are narrow; returns the blob's offset."""
        offset = self._put(b"")
        at = offset + ALIGNMENT
        unused = 8 * len(data) - elements * bits(dtype)
        self._put(METADATA.pack(SENTINEL, NUMBERS[dtype], len(data), at, unused))
        self._put(data.data)
        self.count += 1
        return offset

    def finish(self) -> None:
        """Write the number of blobs into the header."""
        self.file.seek(0)
        self.file.write(HEADER.pack(self.count, _VERSION))

    def _put(self, data: bytes | memoryview) -> int:
        """Write at the next multiple of 64, which is returned; nothing follows the last blob."""
        padding = -self.end % ALIGNMENT
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
        writer.finish()
