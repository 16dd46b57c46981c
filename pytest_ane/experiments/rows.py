"""Rows of recorded outputs: the columns of tests/mlprogram/executor/ane/recorded.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import groupby
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array


@dataclass(frozen=True)
class Row:
    """What the ANE and the CPU gave for the same operands.

    Attributes:
        id: the experiment's name, and the sample's.
        chip: the chip, and the system.
        source: who recorded it.
        op: what was computed.
        operands: JSON; fp16 numbers as hex patterns, `0x3c00*576` for 576 equal ones.
        ane: the ANE's output in decimal, empty for several outputs.
        ane_fp16: the same as a hex pattern; of several outputs one after the other.
        cpu: Core ML's output on the CPU: in decimal, of several outputs as hex patterns.
        note: what speaks against counting the row.
    """

    id: str
    chip: str
    source: str
    op: str
    operands: str
    ane: str
    ane_fp16: str
    cpu: str
    note: str


COLUMNS = tuple(field.name for field in fields(Row))


def pattern(number: Any) -> str:
    """An fp16 number as `0x3c00`."""
    return f"0x{int(np.float16(number).view(np.uint16)):04x}"


def patterns(numbers: Array) -> str:
    """fp16 numbers as patterns, one after the other."""
    bits = np.asarray(numbers, np.float16).reshape(-1).view(np.uint16)
    return " ".join(f"0x{int(b):04x}" for b in bits)


def operand(numbers: Array) -> list[str]:
    """A vector of fp16 numbers for JSON; equal neighbours as `0x3c00*576`."""
    runs = [(bits, len(list(run))) for bits, run in groupby(patterns(numbers).split())]
    return [bits if count == 1 else f"{bits}*{count}" for bits, count in runs]


def to_json(operands: Mapping[str, Any]) -> str:
    """Operands in as few characters as possible."""
    return json.dumps(operands, separators=(",", ":"))


def to_csv(rows: Iterable[Row], comments: Iterable[str] = ()) -> bytes:
    """A file of rows, with comments before them."""
    text = io.StringIO()
    text.writelines(f"# {comment}\n" for comment in comments)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(astuple, rows))
    return text.getvalue().encode()
