"""Golden tensors: probes and expected outputs in a safetensors file, recorded here or elsewhere.

Each probe i has either `{i}.input [T, C]` and `{i}.expected [T, C']`, hidden states of a family's
shard, and perhaps `{i}.residual [T, C']`; or `{i}.in.NAME` and `{i}.out.NAME` for every input and
output of a package. What is known of a probe beside stands in the metadata, as JSON under `json`.
The file may come from anywhere, so nothing in it is taken on trust.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pytest_ane.core.errors import GoldenError
from pytest_ane.core.files import replacing

Tensors = Mapping[str, npt.NDArray[Any]]
Count = Annotated[int, Field(ge=0, le=1 << 20)]

_NAME = re.compile(r"(0|[1-9]\d{0,4})\.(?:(input|expected|residual)|(in|out)\.(.+))")
_FLOATS = ("F16", "F32")
_LARGEST = 4 << 30
"""Bytes of a file: what is read is held in memory."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProbeNote(_Record):
    """What the metadata says of one probe; all of it may be left out.

    Attributes:
        start: position in a prompt at which it begins; `chunk` the largest T of a call.
        residual: "input" where the residual path is the input itself.
        routed: experts that the reference uses at each position.
    """

    kind: Literal["gaussian", "unit-norm", "captured", "outlier", "extreme", "golden"] = "golden"
    name: Annotated[str, Field(min_length=1, max_length=200)] = "golden"
    start: Count = 0
    chunk: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    residual: Literal["input"] | None = None
    routed: list[list[Count]] = []


class PortNote(_Record):
    """An output of a package and which of its axes is flexible, so that positions are compared."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=1)] | Literal["T"]], Field(max_length=8)]


class Notes(_Record):
    """The metadata."""

    golden: Literal[1] = 1
    origin: Annotated[str, Field(max_length=1000)] = ""
    probes: list[ProbeNote] = []
    outputs: list[PortNote] = []


@dataclass(frozen=True, eq=False)
class Golden:
    """A file that was read and checked.

    Attributes:
        probes: by probe, its tensors: `input`, `expected`, `residual`, or `in.NAME`, `out.NAME`.
        hidden: whether they are a family's hidden states.
        notes: one for each probe.
    """

    path: Path
    probes: tuple[Tensors, ...]
    hidden: bool
    notes: tuple[ProbeNote, ...]
    outputs: tuple[PortNote, ...]


def read_golden(path: Path) -> Golden:
    """Read and check golden tensors.

    Raises:
        GoldenError: the file is missing, damaged, or not what its names and shapes must be; or a
            value is NaN or infinite.
    """
    tensors, notes = _read(path)
    try:
        probes = _by_probe(tensors)
        for i, probe in enumerate(probes):
            _check_names(i, probe)
        hidden = "input" in probes[0]
        if any(("input" in probe) != hidden for probe in probes):
            raise ValueError("has hidden states for some probes and a package's inputs for others")
        listed = notes.probes or [ProbeNote(name=f"golden #{i}") for i in range(len(probes))]
        if len(listed) != len(probes):
            raise ValueError(f"describes {len(listed)} probes and holds {len(probes)}")
        for i, (probe, note) in enumerate(zip(probes, listed, strict=True)):
            _check_finite(i, probe)
            if hidden:
                _check_hidden(i, probe, note)
    except ValueError as error:
        raise GoldenError(f"{path}: {error}; record it again: pytest-ane golden record.") from None
    return Golden(path, probes, hidden, tuple(listed), tuple(notes.outputs))


def write_golden(path: Path, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
    """Write golden tensors, whole or not at all.

    Raises:
        GoldenError: the file cannot be written, or not be read again: a value is not finite.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    text = json.dumps({"golden": 1, **metadata}, allow_nan=False)
    new = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write_bytes(save(contiguous, {"json": text}))
            read_golden(new)
    except OSError as error:
        raise GoldenError(f"{path}: cannot be written ({error.strerror or error}).") from error
    except GoldenError as error:
        raise GoldenError(str(error).replace(str(new), str(path))) from None


def _read(path: Path) -> tuple[dict[str, npt.NDArray[Any]], Notes]:
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise GoldenError(f"{path}: has {size:,} bytes; golden tensors have at most 4 GiB.")
        with safe_open(path, framework="numpy") as file:
            notes = Notes.model_validate(json.loads((file.metadata() or {}).get("json", "{}")))
            found = {}
            for name in file.keys():  # noqa: SIM118 - a file is no mapping
                dtype = file.get_slice(name).get_dtype()
                integers = ".in." in name and dtype == "I32"
                if dtype not in _FLOATS and not integers:
                    more = " and, as inputs, I32" if ".in." in name else ""
                    raise ValueError(f"{name} is {dtype}; read are F16, F32{more}")
                array = file.get_tensor(name)
                found[name] = array if integers else array.astype(np.float32)
            return found, notes
    except FileNotFoundError:
        raise GoldenError(
            f"{path}: there are no golden tensors; record them: pytest-ane golden record."
        ) from None
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise GoldenError(
            f"{path}: no golden tensors can be read ({_said(error)}); record them again: "
            "pytest-ane golden record."
        ) from None


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"metadata {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _by_probe(tensors: Tensors) -> tuple[Tensors, ...]:
    found: dict[int, dict[str, npt.NDArray[Any]]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"has a tensor {name!r}; they are called 0.input, 0.expected, 0.residual, or "
                "0.in.NAME and 0.out.NAME"
            )
        found.setdefault(int(match[1]), {})[name.partition(".")[2]] = tensor
    if not found or max(found) != len(found) - 1:
        raise ValueError(
            "holds no probe" if not found else f"probes are not numbered 0 to {len(found) - 1}"
        )
    return tuple(found[i] for i in range(len(found)))


def _check_names(i: int, probe: Tensors) -> None:
    if any("." in name for name in probe) == any("." not in name for name in probe):
        raise ValueError(f"probe {i} mixes hidden states with a package's inputs and outputs")
    need = ("input", "expected") if "." not in next(iter(probe)) else ("in.", "out.")
    for part in need:
        if not any(name.startswith(part) for name in probe):
            raise ValueError(f"probe {i} has no {i}.{part}{'NAME' * part.endswith('.')}")


def _check_finite(i: int, probe: Tensors) -> None:
    for name, tensor in probe.items():
        if not tensor.size:
            raise ValueError(f"{i}.{name} is empty")
        bad = np.flatnonzero(~np.isfinite(tensor))
        if bad.size:
            at = [int(n) for n in np.unravel_index(bad[0], tensor.shape)]
            raise ValueError(f"{i}.{name} is {tensor.flat[bad[0]]} at {at}: nothing agrees with it")


def _check_hidden(i: int, probe: Tensors, note: ProbeNote) -> None:
    shapes = {name: tensor.shape for name, tensor in probe.items()}
    entering, leaving = shapes["input"], shapes["expected"]
    if len(entering) != 2 or len(leaving) != 2 or entering[0] != leaving[0]:
        raise ValueError(
            f"{i}.input is {list(entering)} and {i}.expected {list(leaving)}; they are [T, C] and "
            "[T, C']"
        )
    path = entering if note.residual else shapes.get("residual", leaving)
    if path != leaving:
        raise ValueError(f"the residual path of probe {i} is {list(path)}, not {list(leaving)}")
    if len(note.routed) not in (0, entering[0]):
        raise ValueError(f"probe {i} routes {len(note.routed)} of {entering[0]} positions")
