"""Golden tensors: probes and expected outputs in one file, recorded here or elsewhere.

Each probe i has either `{i}.input [T, C]` and `{i}.expected [T, C']`, hidden states of a family's
shard, and perhaps `{i}.residual [T, C']` and `{i}.state.NAME`; or `{i}.in.NAME` and `{i}.out.NAME`
for every input and output of a package, and `{i}.{call}.in.NAME` where a probe is several calls on
one state. Metadata, JSON under `json`, name and describe the probes: of a safetensors file in its
header, of an `.npz` file a text among the arrays.
The file may come from anywhere, so nothing in it is taken on trust.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pytest_ane.backends import Backend, Runner
from pytest_ane.manifest import Shard
from pytest_ane.manifest.records import ProbeKind
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.atomic import replacing
from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.models.families import Layout, Port, trait
from pytest_ane.probes.cases import Calls, Case, output_kinds, package_case, with_prefix
from pytest_ane.probes.domains import Sampler, Slots, domains, may_be_left_out, slots
from pytest_ane.probes.recording import (
    HiddenProbe,
    goes_back_to_calls,
    in_steps,
    kept_rows,
    probe_of,
)


def read_npz(path: Path, most: int) -> Iterator[tuple[str, Array]]:
    """The arrays of an `.npz` file by name, in the machine's own byte order.

    `ValueError` where it is none, or has more than `most` bytes unpacked.
    """
    try:
        with ZipFile(path) as file:
            entries = file.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > most:
            raise ValueError(f"{len(entries):,} arrays of {size:,} bytes are too many")
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("two arrays have one name")
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                if not isinstance(array := arrays[name], np.ndarray):
                    raise ValueError(f"{name!r} is no array")
                yield name, array.astype(array.dtype.newbyteorder("="))
    except (
        BadZipFile, EOFError, MemoryError, NotImplementedError, RuntimeError, zlib.error,
    ) as error:  # fmt: skip
        raise ValueError(str(error) or type(error).__name__) from None


Count = Annotated[int, Field(ge=0, le=1 << 20)]
Positive = Annotated[int, Field(ge=1, le=1 << 20)]

_NAME = re.compile(
    r"(0|[1-9]\d{0,4})\.(?:input|expected|residual|state\.(.+)|((?:0|[1-9]\d{0,3})\.)?(in|out)\.(.+))"
)
_FLOATS, _INTEGERS = ("F16", "F32"), ("I32", "U8")
_TYPES = {"float16": "F16", "float32": "F32", "int32": "I32", "uint8": "U8"}
NPZ = ".npz"
_JSON = "json"
_LARGEST = 4 << 30
"""Bytes of a file: what is read is held in memory."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProbeNote(_Record):
    """One probe in the metadata, as a `HiddenProbe`; all of it may be left out.

    The calls are as few as the shard takes by default; `residual` is "input" where the residual
    path is the input itself.
    """

    kind: Literal[ProbeKind, "golden"] = "golden"
    name: Annotated[str, Field(min_length=1, max_length=200)] = "golden"
    start: Count = 0
    calls: list[Annotated[tuple[Count, Positive], Strict(False)]] = []
    residual: Literal["input"] | None = None
    routed: list[list[Count]] = []
    left_out: list[Count] = []
    undecided: list[Count] = []
    before: Count = 0
    same_module: bool = False

    def calls_of(self, rows: int) -> Calls:
        """The calls of a probe of so many rows."""
        return tuple(self.calls) or ((0, rows),)


class PortNote(_Record):
    """An output of a package and which of its axes is flexible, so that positions are compared."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=1)] | Literal["T"]], Field(max_length=8)]


class Notes(_Record):
    """The file's metadata: format version 1, where it comes from, its probes and output axes."""

    golden: Literal[1] = 1
    origin: Annotated[str, Field(max_length=1000)] = ""
    probes: list[ProbeNote] = []
    outputs: list[PortNote] = []


@dataclass(frozen=True, eq=False)
class GoldenTensors:
    """A file of golden tensors that was read and checked, with a note for each probe.

    Attributes:
        probes: by probe, its tensors: `input`, `expected`, `residual` and `state.NAME`, or
            `in.NAME` and `out.NAME`.
        hidden: whether they are a family's hidden states.
        origin: what they were recorded from, in words; empty where nobody says.
    """

    path: Path
    probes: tuple[Arrays, ...]
    hidden: bool
    notes: tuple[ProbeNote, ...]
    outputs: tuple[PortNote, ...]
    origin: str = ""


def read_golden(path: Path) -> GoldenTensors:
    """Read and check golden tensors, `.npz` or else safetensors, or raise `GoldenError`."""
    return _checked(path, *_read(path, npz=path.suffix == NPZ))


def _checked(path: Path, tensors: Arrays, notes: Notes) -> GoldenTensors:
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
    return GoldenTensors(path, probes, hidden, tuple(listed), tuple(notes.outputs), notes.origin)


def write_golden(path: Path, tensors: Arrays, metadata: Mapping[str, Any]) -> None:
    """Write golden tensors, whole or not at all, or raise `GoldenError`."""
    text = json.dumps({"golden": 1, **metadata}, allow_nan=False)
    new = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            if npz := path.suffix == NPZ:
                with new.open("wb") as file:
                    np.savez(file, allow_pickle=False, **{**tensors, _JSON: np.array(text)})
            else:
                arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
                new.write_bytes(save(arrays, {_JSON: text}))
            _checked(new, *_read(new, npz=npz))
    except OSError as error:
        raise GoldenError(f"{path}: cannot be written ({error.strerror or error}).") from error
    except GoldenError as error:
        raise GoldenError(str(error).replace(str(new), str(path))) from None


def golden_cases(
    golden: GoldenTensors, shard: Shard, layout: Layout | None, backend: Backend, artifact: Path
) -> list[Case]:
    """The cases of a shard that is held against golden tensors; a family's has a `layout`.

    `GoldenError` where the tensors are another shard's, or longer than this one takes.
    """
    if not golden.hidden:
        return _package_cases(golden, backend.load(artifact, shard.function), artifact, shard)
    if layout is None:
        raise GoldenError(
            f"{golden.path}: holds hidden states of a family's shard, and {shard.qualified} has no "
            "family; record its own inputs and outputs."
        )
    probes = range(len(golden.probes))
    return [_hidden_probe(golden, i, shard, layout).case(layout) for i in probes]


def _hidden_probe(golden: GoldenTensors, i: int, shard: Shard, layout: Layout) -> HiddenProbe:
    probe, note = golden.probes[i], golden.notes[i]
    hidden, expected = probe["input"], probe["expected"]
    length, width = hidden.shape
    calls, name = note.calls_of(length), shard.qualified
    rows = 1 if trait(layout, "pools") else len(kept_rows(calls))
    end = max(start + size for start, size in calls)
    problems = {
        f"input has {width} channels, and {name} takes {layout.width}; is it another shard's": (
            width != layout.width
        ),
        f"input has {length} positions, and {name} takes at most max-tokens = {shard.max_tokens} "
        "at once; raise it or record shorter probes": (
            layout.sees == "call" and length > shard.max_tokens
        ),
        f"expected has {len(expected)} positions, and {name} gives {rows}; is it another shard's": (
            len(expected) != rows
        ),
        f"input has {end} positions, and {name} holds at most context = {shard.context}; raise it "
        "or record shorter probes": layout.sees == "state" and end > shard.context,
        f"input goes back to a position at which no call began, and {name} has recurrent states, "
        "which are known only there; record it again": (
            bool(trait(layout, "recurrent")) and not goes_back_to_calls(calls)
        ),
        f"input begins at position {calls[0][0]}, and sequences of {name} begin at 0; record it "
        "again": calls[0][0] > note.before and not trait(layout, "shifts"),
    }
    if wrong := next((sentence for sentence, holds in problems.items() if holds), ""):
        raise GoldenError(f"{golden.path}: {i}.{wrong}.")
    steps = tuple(step for at, size in calls for step in in_steps(size, shard.max_tokens, at))
    return probe_of({**note.model_dump(), "calls": steps}, probe)


def _package_cases(
    golden: GoldenTensors, runner: Runner, artifact: Path, shard: Shard
) -> list[Case]:
    kinds = output_kinds(runner.model)
    leads, sampler, features = Slots(), None, runner.model.inputs
    if runner.model.states:
        known = domains(features, shard.inputs, artifact, function=shard.function)
        leads, sampler = slots(artifact, known, shard.function), Sampler(features, artifact, known)
    declared = {feature.name for feature in features}
    needed = {feature.name for feature in features if not may_be_left_out(feature)}
    ports = [Port(port.name, tuple(port.shape)) for port in golden.outputs]
    cases = []
    for i, (probe, note) in enumerate(zip(golden.probes, golden.notes, strict=True)):
        calls, outputs = (
            [with_prefix(probe, f"{call}{side}.") for call in _prefixes(probe)]
            for side in ("in", "out")
        )
        for inputs in calls:
            if not needed <= inputs.keys() <= declared:
                raise GoldenError(
                    f"{golden.path}: probe {i} has inputs {_listed(inputs)}, and {artifact} takes "
                    f"{_listed(declared)}; are they another package's?"
                )
        if any(each.keys() != outputs[0].keys() for each in outputs):
            raise GoldenError(f"{golden.path}: probe {i} has other outputs in some of its calls.")
        cases.append(package_case(
            note.kind, note.name, calls, outputs, ports,
            start=note.start, slots=leads.states, kinds=kinds, same_module=note.same_module,
            spans=() if sampler is None else sampler.spans(calls, leads.step),
        ))  # fmt: skip
    return cases


def _read(path: Path, *, npz: bool) -> tuple[dict[str, Array], Notes]:
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise GoldenError(f"{path}: has {size:,} bytes; golden tensors have at most 4 GiB.")
        arrays, text = (_of_npz if npz else _of_safetensors)(path)
        notes = Notes.model_validate(json.loads(text))
        # Integers are inputs alone.
        floats = {name: x.astype(np.float32) for name, x in arrays.items() if x.dtype.kind == "f"}
        return arrays | floats, notes
    except FileNotFoundError:
        raise GoldenError(
            f"{path}: there are no golden tensors; record them: pytest-ane golden record."
        ) from None
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise GoldenError(
            f"{path}: no golden tensors can be read ({_message(error)}); record them again: "
            "pytest-ane golden record."
        ) from None


def _of_safetensors(path: Path) -> tuple[dict[str, Array], str]:
    with safe_open(path, framework="numpy") as file:
        arrays = {}
        for name in file.keys():  # noqa: SIM118 - a file is no mapping
            _check_type(name, file.get_slice(name).get_dtype())
            arrays[name] = file.get_tensor(name)
        return arrays, (file.metadata() or {}).get(_JSON, "{}")


def _of_npz(path: Path) -> tuple[dict[str, Array], str]:
    arrays, text = {}, "{}"
    for name, array in read_npz(path, _LARGEST):
        if name == _JSON:
            if array.ndim or array.dtype.kind not in "US":
                raise ValueError(f"{name} is no text")
            text = str(array.astype(str))
            continue
        _check_type(name, _TYPES.get(array.dtype.name, array.dtype.name))
        arrays[name] = array
    return arrays, text


def _check_type(name: str, dtype: str) -> None:
    if dtype not in _FLOATS and not (".in." in name and dtype in _INTEGERS):
        more = " and, as inputs, I32 and U8" if ".in." in name else ""
        raise ValueError(f"{name} is {dtype}; read are F16, F32{more}")


def _message(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"metadata {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _by_probe(tensors: Arrays) -> tuple[Arrays, ...]:
    probes: dict[int, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"has a tensor {name!r}; they are called 0.input, 0.expected, 0.residual, or "
                "0.in.NAME and 0.out.NAME"
            )
        probes.setdefault(int(match[1]), {})[name.partition(".")[2]] = tensor
    if not probes:
        raise ValueError("holds no probe")
    if max(probes) != len(probes) - 1:
        raise ValueError(f"probes are not numbered 0 to {len(probes) - 1}")
    return tuple(probes[i] for i in range(len(probes)))


def _check_names(i: int, probe: Arrays) -> None:
    hidden = {name for name in probe if name.startswith(("input", "expected", "res", "state."))}
    if hidden and len(hidden) < len(probe):
        raise ValueError(f"probe {i} mixes hidden states with a package's inputs and outputs")
    for name in ("input", "expected") if hidden else ():
        if name not in probe:
            raise ValueError(f"probe {i} has no {i}.{name}")
    calls = [""] if hidden else _prefixes(probe)
    if "" in calls and len(calls) > 1:
        raise ValueError(f"probe {i} names some tensors by their call and some not")
    for call in () if hidden else calls:
        for prefix in (f"{call}in.", f"{call}out."):
            if not any(name.startswith(prefix) for name in probe):
                raise ValueError(f"probe {i} has no {i}.{prefix}NAME")


def _prefixes(probe: Arrays) -> list[str]:
    """`0.`, `1.`, ... of the calls of a package's probe; one empty one where they have none."""
    numbers = {name.partition(".")[0] for name in probe} - {"in", "out"}
    named = [""] if any(name.startswith(("in.", "out.")) for name in probe) else []
    return [*named, *(f"{i}." for i in range(max(map(int, numbers), default=-1) + 1))]


def _check_finite(i: int, probe: Arrays) -> None:
    for name, tensor in probe.items():
        if not tensor.size:
            raise ValueError(f"{i}.{name} is empty")
        bad = np.flatnonzero(~np.isfinite(tensor))
        if bad.size:
            at = [int(n) for n in np.unravel_index(bad[0], tensor.shape)]
            raise ValueError(f"{i}.{name} is {tensor.flat[bad[0]]} at {at}: nothing agrees with it")


def _check_hidden(i: int, probe: Arrays, note: ProbeNote) -> None:
    shapes = {name: tensor.shape for name, tensor in probe.items()}
    entering, leaving = shapes["input"], shapes["expected"]
    if len(entering) != 2 or len(leaving) != 2:
        raise ValueError(
            f"{i}.input is {list(entering)} and {i}.expected {list(leaving)}; they are [T, C] and "
            "[T, C']"
        )
    calls = note.calls_of(entering[0])
    if (rows := sum(size for _, size in calls)) != entering[0]:
        raise ValueError(f"{i}.input has {entering[0]} rows, and the calls of probe {i} {rows}")
    # One row for all positions is what an encoder's pooling gives.
    if leaving[0] not in (1, length := len(kept_rows(calls))):
        raise ValueError(
            f"{i}.input is {list(entering)} and {i}.expected {list(leaving)}, and its calls give "
            f"{length} positions"
        )
    path = (leaving[0], entering[1]) if note.residual else shapes.get("residual", leaving)
    problems = {
        f"the residual path of probe {i} is {list(path)}, not {list(leaving)}": path != leaving,
        f"probe {i} routes {len(note.routed)} of {length} positions": (
            len(note.routed) not in (0, length)
        ),
        f"probe {i} leaves out channels that {i}.expected does not have": (
            max(note.left_out, default=0) >= leaving[1]
        ),
        f"probe {i} leaves out rows that {i}.expected does not have": (
            max(note.undecided, default=0) >= length
        ),
        f"probe {i} begins at {calls[0][0]}, and {note.before} positions precede": (
            note.before > calls[0][0]
        ),
    }
    if wrong := next((sentence for sentence, holds in problems.items() if holds), ""):
        raise ValueError(wrong)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
