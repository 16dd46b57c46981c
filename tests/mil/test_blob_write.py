"""Weights files, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_ane.mil.blob import blob_writer
from pytest_ane.mil.records import DType
from tests.mil.packages import CODES, Weights


def test_a_file_as_it_is_read(tmp_path: Path) -> None:
    expected = Weights()
    offsets = [expected.add(b"\x01" * 70, CODES["UINT8"]), expected.add(b"\x02" * 64, 1)]
    with blob_writer(tmp_path / "weight.bin") as writer:
        assert writer.add(DType.UINT8, 70, np.full(70, 1, np.uint8)) == offsets[0]
        assert writer.add(DType.FP16, 32, np.full(64, 2, np.uint8)) == offsets[1]
    assert (tmp_path / "weight.bin").read_bytes() == expected.to_bytes()


def test_unused_bits_are_stated_and_nothing_follows_the_last_blob(tmp_path: Path) -> None:
    with blob_writer(tmp_path / "weight.bin") as writer:
        offset = writer.add(DType.UINT3, 5, np.array([0xFF, 0x7F], np.uint8))
    data = (tmp_path / "weight.bin").read_bytes()
    assert offset == 64
    assert len(data) == 64 + 64 + 2
    assert int.from_bytes(data[offset + 24 : offset + 32], "little") == 1


def test_no_blob(tmp_path: Path) -> None:
    with blob_writer(tmp_path / "weight.bin"):
        pass
    assert (tmp_path / "weight.bin").read_bytes() == bytes([0, 0, 0, 0, 2, 0, 0, 0])
