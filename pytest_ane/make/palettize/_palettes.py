"""Palettes: tables of values and packed indices of one weight, and a package with all of them.

The palettes of a weight are found group by group in threads. In a package the program's message is
edited in place: a weight's `const` becomes the `constexpr_lut_to_dense` that coremltools 9.0 would
write, everything else stays. Weights go from the mapped file into the new one; one at a time is in
memory.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ane.make.palettize import _kmeans as kmeans
from pytest_ane.make.palettize._kmeans import Indices, Patterns
from pytest_ane.make.palettize.choose import Grouping, Uses, choose
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.arrays import Array, FloatArray, HalfArray
from pytest_ane.mlprogram.blob import BlobWriter, blob_writer, byte_size, load, packed
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.executor.dtypes import rounded
from pytest_ane.mlprogram.package import parse_package, read_package
from pytest_ane.mlprogram.proto import mil, set_blob, set_bytes, set_name
from pytest_ane.mlprogram.records import (
    Blob,
    Block,
    DType,
    Function,
    MLModel,
    Operation,
    TensorType,
    Value,
)
from pytest_ane.mlprogram.weights import constant_name

Rows = npt.NDArray[np.float64]
Mode: TypeAlias = Literal["kmeans", "uniform", "unique"]

NBITS = (1, 2, 3, 4, 6, 8)
"""The widths of an index that Core ML knows."""
_CHUNK = 1 << 20
"""Weights of a task, about. Tasks do not depend on the number of threads, nor do results."""
_PIECE = 1 << 17
"""Weights whose steps are found at once: their float32 numbers stay in the cache."""


@dataclass(frozen=True, eq=False)
class Palettes:
    """A weight's palettes: fp16 `luts` `[groups, 2^nbits]`, ascending, then zeros; uint8 `indices`.

    The groups lie along `axis`.
    """

    luts: HalfArray
    indices: Indices
    axis: int

    @property
    def nbits(self) -> int:
        return int(self.luts.shape[1]).bit_length() - 1

    def values(self) -> FloatArray:
        """The weight that they stand for, float32."""
        moved = np.swapaxes(self.indices, 0, self.axis)
        values = np.empty(moved.shape, np.float32)
        tables, groups = self.luts.astype(np.float32), len(self.luts)
        parts = (np.split(moved, groups), np.split(values, groups))
        for table, rows, out in zip(tables, *parts, strict=True):
            np.take(table, rows, out=out)
        return np.ascontiguousarray(np.swapaxes(values, 0, self.axis))

    def errors(self, weight: HalfArray, threads: int) -> Rows:
        """Squared error of each row of the weight that was palettized, float64 `[rows]`."""
        height = len(weight)
        if self.axis:
            with np.errstate(over="ignore", invalid="ignore"):
                lost = np.square(self.values() - weight.astype(np.float32))
            return np.asarray(lost.reshape(height, -1).sum(1, np.float64))
        shape = len(self.luts), -1
        rows = np.ascontiguousarray(weight).view(np.ndarray).reshape(shape).view(np.uint16)
        rows.setflags(write=False)
        errors = np.zeros((len(self.luts), height // len(self.luts)))
        luts, indices = self.luts.astype(np.float32), self.indices.reshape(rows.shape)
        _by_groups(rows, threads, kmeans.row_errors, luts, indices, errors)
        return errors.reshape(-1)


def default_threads() -> int:
    """The number of threads that the user or the plugin chose for arithmetic; all cores if none."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else os.cpu_count() or 1


def find_palettes(
    weight: HalfArray, mode: Mode, nbits: int, *, groups: int, axis: int, threads: int
) -> Palettes:
    """Palettes for groups of a weight's channels, which lie along `axis`; `groups` divide them.

    The mode `kmeans` has the least sum of squared errors there is, before tables are rounded to
    fp16; `uniform` has even steps, and the same bits as coremltools' own; `unique` is lossless and
    finds the number of bits itself. Results do not depend on `threads`. `ValueError`, which ends a
    sentence, of NaN, infinity, a group that spans more than fp16 holds (`uniform`), or one of more
    than 256 distinct values (`unique`).
    """
    moved = np.swapaxes(weight, 0, axis)
    rows = np.ascontiguousarray(moved).view(np.ndarray).reshape(groups, -1).view(np.uint16)
    # Writable arrays would be another type, for which everything is compiled again.
    rows.setflags(write=False)
    if mode == "uniform":
        luts, indices = _uniform(rows, threads, nbits)
    else:
        luts, indices = _kmeans(
            rows, threads, nbits if mode == "kmeans" else _needed(rows, threads)
        )
    return Palettes(luts, np.swapaxes(indices.reshape(moved.shape), 0, axis), axis)


def pack(indices: Indices, nbits: int) -> Indices:
    """Indices in the order they lie in memory, as bits, lowest first."""
    flat = np.ascontiguousarray(indices).reshape(-1)
    bits = np.empty(-(-flat.size * nbits // 8), np.uint8)
    if nbits == 8:
        return flat
    kmeans.pack(flat, nbits, bits)
    return bits


def _by_groups(
    rows: Patterns, threads: int, kernel: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """A kernel's results for patterns of fp16 weights, uint16 `[groups, size]`, some groups a call.

    Of arrays among its arguments it gets the rows of its groups.
    """
    step = max(1, _CHUNK // rows.shape[1])

    def task(first: int) -> Any:
        part = slice(first, first + step)
        own = (a[part] if isinstance(a, np.ndarray) else a for a in arguments)
        return kernel(rows[part], *own)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(task, range(0, len(rows), step)))


def _kmeans(rows: Patterns, threads: int, nbits: int) -> tuple[HalfArray, Indices]:
    luts = np.zeros((len(rows), 1 << nbits))
    indices = np.empty(rows.shape, np.uint8)
    if not all(_by_groups(rows, threads, kmeans.kmeans, luts, indices)):
        raise ValueError("holds a NaN or an infinity")
    return luts.astype(np.float16), indices


def _needed(rows: Patterns, threads: int) -> int:
    """The least number of bits that holds all values of every group."""
    counts = _by_groups(rows, threads, kmeans.distinct, 1 << NBITS[-1])
    if min(counts) < 0:
        raise ValueError("holds a NaN or an infinity")
    for nbits in NBITS:
        if max(counts) <= 1 << nbits:
            return nbits
    raise TooManyValues("has a group of more than 256 distinct values")


class TooManyValues(ValueError):
    """A weight that `unique` declines."""


def _uniform(rows: Patterns, threads: int, nbits: int) -> tuple[HalfArray, Indices]:
    """As `_get_lut_and_indices` in coremltools 9.0, optimize/coreml/_quantization_passes.py."""
    steps = (1 << nbits) - 1
    ends = np.empty((len(rows), 2), np.float32)
    indices = np.empty(rows.shape, np.uint8)
    fits = all(_by_groups(rows, threads, _even, np.float32(steps), ends, indices))
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = ends.astype(np.float16).T[:, :, None]
        luts = np.arange(1 << nbits) * ((high - low) / steps).astype(np.float64) + low
        rounded_luts = luts.astype(np.float16)
    if not fits or not np.isfinite(rounded_luts).all():
        raise ValueError("holds a NaN, an infinity, or values too large for even steps in fp16")
    return rounded_luts, indices


def _even(rows: Patterns, steps: np.float32, ends: FloatArray, indices: Indices) -> bool:
    """Groups' least and largest value, and each weight's nearest step: rounded as numpy's fp16 is.

    Whether all weights are numbers, and no group spans more than fp16 holds.
    """
    values, width = rows.view(np.float16).astype(np.float32), max(1, _PIECE // len(rows))
    ends[:, 0], ends[:, 1] = values.min(1), values.max(1)
    low, high = ends[:, :1], ends[:, 1:]
    with np.errstate(all="ignore"):
        span = rounded(high - low)
        divisor = np.where(span == 0, np.float32(np.inf), span)
        for begin in range(0, rows.shape[1], width):
            part = slice(begin, begin + width)
            share = rounded(rounded(values[:, part] - low) / divisor)
            indices[:, part] = np.rint(rounded(share * steps))
    return bool(np.isfinite(span).all())


Progress: TypeAlias = Callable[[str, int, int], None]
"""Takes a weight's name, the elements that are palettized already and those of all weights."""

WEIGHTS = "@model_path/weights/weight.bin"
_IOS16, _IOS18 = 7, 9
"""Specification versions of the first deployment targets with palettes, and with groups. A program
for iOS 15 becomes one for iOS 16, as by coremltools."""
_OPSET15, _OPSET16 = "CoreML5", "CoreML6"
_LEAST_IN_FILE = 10
"""coremltools keeps arrays of fewer elements in the program (`should_use_weight_file`)."""


def palettize(
    source: Path, destination: Path, settings: Mapping[str, Palettize], *,
    threads: int | None = None, subject: str | None = None,
    errors: dict[str, Rows] | None = None, progress: Progress = lambda name, done, total: None,
) -> tuple[str, ...]:  # fmt: skip
    """Write a copy of a package in which weights are palettized; one that functions share, once.

    Settings are by the names of weights' `const` operations; `errors` is filled with the squared
    error of each row, by the weight's name. After an error the copy is unfinished. Gives a note on
    each weight that a setting names and that was left as it is. `ProgramError` where the source is
    damaged, `BuildError` where it is a pipeline or too old, or a weight is not finite.
    """
    model = read_package(source)
    if not isinstance(model, MLModel):
        raise BuildError(f"{source}: is a pipeline; compress its models before they are joined.")
    file, message = parse_package(source)
    weights = Path(model.weights)
    ignored = shutil.ignore_patterns(file.name, weights.name)
    shutil.copytree(source, destination, ignore=ignored)
    target = destination / weights.relative_to(source)
    target.mkdir(exist_ok=True)
    with blob_writer(target / "weight.bin") as writer:
        rewriter = _Rewriter(
            model, settings, writer, threads or default_threads(), subject or str(model.path),
            errors if errors is not None else {}, progress,
        )  # fmt: skip
        for name, function in model.program.functions.items():
            rewriter.function(message.mlProgram.functions[name], function)
    if rewriter.total:
        message.specificationVersion = max(message.specificationVersion, _IOS16)
    (destination / file.relative_to(source)).write_bytes(message.SerializeToString())
    return tuple(dict.fromkeys(rewriter.notes))


class _Stored(NamedTuple):
    """What functions that share a weight share of it once it is palettized."""

    blob: Blob
    shape: tuple[int, ...]
    choice: Grouping


def _stored(op: Operation, choice: Grouping) -> _Stored:
    value = op.attributes["val"]
    assert isinstance(value.data, Blob)
    assert isinstance(value.type, TensorType)
    return _Stored(value.data, tuple(int(d or 0) for d in value.type.shape), choice)


@dataclass
class _Rewriter:
    """Edits functions one after another; `notes` grow with the weights that are declined."""

    model: MLModel
    settings: Mapping[str, Palettize]
    writer: BlobWriter
    threads: int
    subject: str
    errors: dict[str, Rows]
    progress: Progress
    notes: list[str] = field(default_factory=list)
    moved: dict[Blob, int] = field(default_factory=dict)
    made: dict[_Stored, Any] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        self.choices: dict[Operation, Grouping | str | None] = {}
        for function in self.model.program.functions.values():
            uses = Uses(function)
            constants = (op for op in function.walk() if op.op == "const")
            self.choices |= {op: choose(op, self.settings, uses) for op in constants}
        chosen = {_stored(op, c) for op, c in self.choices.items() if isinstance(c, Grouping)}
        self.total = sum(math.prod(each.shape) for each in chosen)

    def function(self, message: Any, function: Function) -> None:
        """Edit a function's block; it is the only one, for what others name would be lost."""
        if len(message.block_specializations) > 1:
            says = f"{function.name} has blocks for several opsets"
            raise BuildError(f"{self.subject}: {says}; convert it again for one deployment target.")
        block = message.block_specializations[function.opset]
        self.block(block, function.block, {})
        if self.total and function.opset == _OPSET15:
            message.opset = _OPSET16
            message.block_specializations[_OPSET16].CopyFrom(block)
            del message.block_specializations[_OPSET15]

    def block(self, message: Any, block: Block, renamed: Mapping[str, str]) -> None:
        """Edit a block; `renamed` are the palettized weights in scope."""
        names = {k: v for k, v in renamed.items() if k not in {i.name for i in block.inputs}}
        for edited, op in zip(message.operations, block.operations, strict=True):
            for argument in edited.inputs.values():
                for binding in argument.arguments:
                    if binding.WhichOneof("binding") == "name":
                        binding.name = names.get(binding.name, binding.name)
            for inner, read in zip(edited.blocks, op.blocks, strict=True):
                self.block(inner, read, names)
            for output in op.outputs:
                names.pop(output.name, None)
            if self.palettized(edited, op):
                names[op.name] = edited.outputs[0].name
            else:
                self.keep(edited, op)

    def palettized(self, message: Any, op: Operation) -> bool:
        """Replace a constant that is a weight to palettize; says whether it was."""
        choice = self.choices.get(op)
        if isinstance(choice, Grouping):
            try:
                self.replace(message, op, choice)
            except TooManyValues as why:
                choice = str(why)
        if isinstance(choice, str):
            self.notes.append(f"{constant_name(op)}: {choice}")
        return isinstance(choice, Grouping)

    def find(self, op: Operation, choice: Grouping) -> Palettes:
        method, weight = choice.method, load(self.model, op.attributes["val"])
        nbits, version = method.nbits, self.model.specification_version
        narrow = nbits == 3 and method.mode != "unique"
        if version < _IOS18 and (choice.groups > 1 or narrow):
            asked = f"{constant_name(op)} was to have {choice.groups} palettes of {nbits} bits"
            fix = "convert it for iOS18, or set granularity = 'per_tensor' and other than 3 bits"
            newer = f"which need a newer deployment target; {fix}"
            raise BuildError(f"{self.subject}: {asked}, {newer}.")
        try:
            palettes = find_palettes(
                weight, method.mode, nbits,
                groups=choice.groups, axis=choice.axis, threads=self.threads,
            )  # fmt: skip
            self.errors[constant_name(op)] = palettes.errors(weight, self.threads)
            if palettes.nbits == 3 and version < _IOS18:
                # There are no indices of 3 bits, which `unique` may come to.
                return replace(palettes, luts=np.pad(palettes.luts, [(0, 0), (0, 8)]))
            return palettes
        except TooManyValues:
            raise
        except ValueError as why:
            fix = "it cannot be palettized, so repair its source or name it in compression.keep"
            raise BuildError(f"{self.subject}: {constant_name(op)} {why}; {fix}.") from None

    def replace(self, message: Any, op: Operation, choice: Grouping) -> None:
        """Turn a `const` into a `constexpr_lut_to_dense`."""
        stored = _stored(op, choice)
        if stored not in self.made:
            self.progress(constant_name(op), self.done, self.total)
            self.made[stored] = self.expansion(self.find(op, choice))
            self.done += math.prod(stored.shape)
        name = f"{constant_name(op)}_palettized"
        message.type = "constexpr_lut_to_dense"
        del message.attributes["val"]
        message.outputs[0].name = name
        set_name(message.attributes["name"], name)
        message.MergeFrom(self.made[stored])

    def expansion(self, palettes: Palettes) -> Any:
        """The parameters of a `constexpr_lut_to_dense`, as a message to merge."""
        message = mil().Operation()
        nbits, indices, luts = palettes.nbits, palettes.indices, palettes.luts
        bits = pack(indices, nbits)
        if self.model.specification_version < _IOS18:
            shape = np.array(indices.shape, np.uint32)
            self.put(message.attributes["indices"], DType.UINT8, bits.shape, bits)
            self.put(message.attributes["lut"], DType.FP16, (luts.size,), luts)
            self.put(message.attributes["shape"], DType.UINT32, shape.shape, shape)
            return message
        grid = [1] * indices.ndim + [luts.shape[1], 1]
        grid[palettes.axis] = len(luts)
        narrow = DType(f"uint{nbits}")
        for key, dtype, extent, data in (
            ("indices", narrow, indices.shape, bits),
            ("lut", DType.FP16, tuple(grid), luts),
        ):
            self.put(message.inputs[key].arguments.add().value, dtype, extent, data)
        return message

    def put(self, message: Any, dtype: DType, shape: tuple[int, ...], data: Array) -> None:
        """A constant's value, in the weights file unless it is tiny."""
        count = int(np.prod(shape))
        raw = data.reshape(-1).view(np.uint8)
        if count < _LEAST_IN_FILE:
            set_bytes(message, dtype, shape, raw.tobytes())
        else:
            set_blob(message, dtype, shape, WEIGHTS, self.writer.add(dtype, count, raw))

    def keep(self, message: Any, op: Operation) -> None:
        """Copy what an operation has in the weights file, once, and point to the copy."""
        for key, value in op.attributes.items():
            self.copy(message.attributes[key], value)
        for key, arguments in op.inputs.items():
            for binding, argument in zip(message.inputs[key].arguments, arguments, strict=True):
                if isinstance(argument, Value):
                    self.copy(binding.value, argument)

    def copy(self, message: Any, value: Value) -> None:
        blob, kind = value.data, value.type
        if not isinstance(blob, Blob) or not isinstance(kind, TensorType):
            return
        if blob not in self.moved:
            count = int(np.prod([int(d or 0) for d in kind.shape]))
            data = packed(self.model, value)[: byte_size(value)]
            self.moved[blob] = self.writer.add(kind.dtype, count, data)
        message.blobFileValue.fileName = WEIGHTS
        message.blobFileValue.offset = self.moved[blob]
