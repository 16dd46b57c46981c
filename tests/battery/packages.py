"""Faults in the files of a built package: tables, indices, constants, pages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import Blob, Value
from tests.battery.fault import BLOCKS, HEAD, Fault, Modules, Put, unique

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
_METADATA = struct.Struct("<IIQQQ")
_WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")
_SMALL = ("zaya:L01", "gemma4:L00.p7")


class Stored(NamedTuple):
    """One blob of a package: its name, such as `gate_proj_weight_to_fp16_palettized.lut`."""

    name: str
    shape: tuple[int, ...]
    at: int
    size: int


def stored(package: Path) -> Iterator[Stored]:
    """Every blob that a package's program names, in the file's order."""
    model, data = read_model(package), (package / _WEIGHTS).read_bytes()
    for op in model.main.walk():
        values = [(key, value) for key, group in op.inputs.items() for value in group]
        for key, value in (*values, *op.attributes.items()):
            if isinstance(value, Value) and isinstance(value.data, Blob):
                _, _, size, at, _ = _METADATA.unpack_from(data, value.data.offset)
                kind: Any = value.type
                yield Stored(f"{op.name}.{key}", kind.shape, at, size)


def rewrite(part: str, change: Change, dtype: Any = np.uint8) -> Put:
    """Change the bytes of the first blob whose name holds this text, seen as a type."""

    def put(package: Path, _: Modules) -> None:
        blob = next(blob for blob in stored(package) if part in blob.name)
        with (package / _WEIGHTS).open("r+b") as file:
            file.seek(blob.at)
            values = np.frombuffer(file.read(blob.size), dtype).copy()
            if blob.name.endswith((".lut", ".val")):
                values = values.reshape(blob.shape)
            spoilt = np.ascontiguousarray(change(values), values.dtype)
            assert spoilt.nbytes == blob.size
            file.seek(blob.at)
            file.write(spoilt.tobytes())

    return put


def tables(part: str, change: Change) -> Put:
    """Change the look-up tables `[groups, ..., entries, 1]` of a weight, in fp16."""
    return rewrite(f"{part}", change, np.float16)


def exchange(first: str, second: str) -> Put:
    """Exchange two blobs of one size."""

    def put(package: Path, _: Modules) -> None:
        every = list(stored(package))
        a, b = (next(blob for blob in every if part in blob.name) for part in (first, second))
        assert a.size == b.size, (a, b)
        data = bytearray((package / _WEIGHTS).read_bytes())
        one, other = data[a.at : a.at + a.size], data[b.at : b.at + b.size]
        data[a.at : a.at + a.size], data[b.at : b.at + b.size] = other, one
        (package / _WEIGHTS).write_bytes(data)

    return put


def _cut(package: Path, _: Modules) -> None:
    file = package / _WEIGHTS
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 3 // 4])


def _set(index: Any, change: Callable[[Any], Any]) -> Change:
    def changed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values[index] = change(values[index])
        return values

    return changed


def _page(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A page of 4,096 bytes, or a quarter of fewer, is lost."""
    size = min(4096, len(values) // 4)
    values[len(values) // 2 : len(values) // 2 + size] = 0
    return values


def _coarser(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Every table keeps every fourth of its entries."""
    return np.repeat(values[..., 1::4, :], 4, axis=-2)[..., : values.shape[-2], :]


def _clipped(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Magnitudes above a third of a table's largest are cut off."""
    limit = np.abs(values.astype(np.float32)).max(axis=-2, keepdims=True) / 3
    return np.clip(values, -limit, limit)


def _flipped(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values[len(values) // 3] ^= 0x80
    return values


def _package(
    name: str, what: str, put: Put, shards: tuple[str, ...] = BLOCKS, **more: Any
) -> Fault:
    return Fault(name, "package", what, put, shards, "package", **{"cause": "compression"} | more)


FAULTS = unique([
    _package("table-zero", "one table of gate is zero",
             tables("gate_proj_weight_to_fp16_palettized.lut", _set(1, lambda t: t * 0))),
    _package("table-zero-last", "the last table of down is zero",
             tables("down_proj_weight_to_fp16_palettized.lut", _set(-1, lambda t: t * 0))),
    _package("table-reversed", "entries of one table are reversed",
             tables("up_proj_weight_to_fp16_palettized.lut", _set(2, lambda t: t[..., ::-1, :]))),
    _package("tables-reversed", "entries of all tables of o are reversed",
             tables("o_proj_weight_to_fp16_palettized.lut", lambda t: t[..., ::-1, :])),
    _package("tables-exchanged", "the first two tables of v are exchanged",
             tables("v_proj_weight_to_fp16_palettized.lut",
                    lambda t: t[[1, 0, *range(2, len(t))]])),
    _package("tables-rolled", "tables of gate are rolled by one group",
             tables("gate_proj_weight_to_fp16_palettized.lut", lambda t: np.roll(t, 1, 0))),
    _package("tables-neighbour", "gate has up's tables",
             exchange("gate_proj_weight_to_fp16_palettized.lut",
                      "up_proj_weight_to_fp16_palettized.lut")),
    _package("tables-x1.1", "one table of q times 1.1",
             tables("q_proj_weight_to_fp16_palettized.lut",
                    _set(0, lambda t: t * np.float16(1.1)))),
    _package("tables-negated", "one table of v is negated",
             tables("v_proj_weight_to_fp16_palettized.lut", _set(3, lambda t: -t))),
    _package("tables-coarse", "a quarter of the entries of up's tables",
             tables("up_proj_weight_to_fp16_palettized.lut", _coarser)),
    _package("tables-clipped", "outliers of down's tables are cut off",
             tables("down_proj_weight_to_fp16_palettized.lut", _clipped)),
    _package("tables-nan", "NaN in a table of o",
             tables("o_proj_weight_to_fp16_palettized.lut", _set(
                 (1, ..., 30, 0), lambda t: t * np.float16(np.nan)))),
    _package("tables-bytes", "bytes of k's tables are in the other order",
             rewrite("k_proj_weight_to_fp16_palettized.lut",
                     lambda t: t.view(np.uint16).byteswap().view(np.float16), np.float16)),
    _package("entry-large", "one entry of one table of down is 30 times too large",
             tables("down_proj_weight_to_fp16_palettized.lut", _set(
                 (2, ..., 40, 0), lambda t: t * np.float16(30)))),
    _package("indices-bit", "a low bit of one 6-bit index of gate: its row's error grows by 7 %",
             rewrite("gate_proj_weight_to_fp16_palettized.indices", _flipped)),
    _package("indices-high-bit", "the highest bit of one 8-bit index of q",
             rewrite("q_proj_weight_to_fp16_palettized.indices", _flipped)),
    _package("indices-page", "a page of up's indices is zero",
             rewrite("up_proj_weight_to_fp16_palettized.indices", _page)),
    _package("indices-page-q", "a page of q's indices is zero",
             rewrite("q_proj_weight_to_fp16_palettized.indices", _page)),
    _package("indices-rolled", "indices of down are one byte off",
             rewrite("down_proj_weight_to_fp16_palettized.indices", lambda i: np.roll(i, 1))),
    _package("indices-exchanged", "indices of gate and up are exchanged",
             exchange("gate_proj_weight_to_fp16_palettized.indices",
                      "up_proj_weight_to_fp16_palettized.indices")),
    _package("indices-reversed", "indices of k are reversed",
             rewrite("k_proj_weight_to_fp16_palettized.indices", lambda i: i[::-1])),
    _package("indices-bits-lost", "the lowest bits of q's indices are zero",
             rewrite("q_proj_weight_to_fp16_palettized.indices", lambda i: i & 0xF0)),
    _package("constant-zero", "an eighth of the network's norm weights is zero",
             tables("ffn_norm_weight_to_fp16.val", lambda w: np.where(
                 np.arange(w.shape[1]).reshape(1, -1, 1, 1) < w.shape[1] // 8, 0, w))),
    _package("constant-one", "the largest weight of attention's norm is zero",
             tables("attention_norm_weight_to_fp16.val", lambda w: np.where(
                 np.abs(w) == np.abs(w).max(), 0, w))),
    _package("constants-exchanged", "the two norms' weights are exchanged",
             exchange("attention_norm_weight_to_fp16.val", "ffn_norm_weight_to_fp16.val")),
    _package("file-cut", "the last quarter of the weights file is missing", _cut,
             gate="compression", cause="build"),
    _package("head-table-zero", "one table of the head is zero",
             tables("head_weight_to_fp16_palettized.lut", _set(7, lambda t: t * 0)), HEAD),
    _package("head-page", "a page of the head's indices is zero",
             rewrite("head_weight_to_fp16_palettized.indices", _page), HEAD),
    _package("head-tables-rolled", "tables of the head are one group off",
             tables("head_weight_to_fp16_palettized.lut", lambda t: np.roll(t, 1, 0)), HEAD),
    _package("small-table-zero", "one table of the first palette is zero",
             tables("palettized.lut", _set(1, lambda t: t * 0)), _SMALL),
    _package("small-indices-rolled", "indices of the first palette are one byte off",
             rewrite("palettized.indices", lambda i: np.roll(i, 1)), _SMALL),
])  # fmt: skip
