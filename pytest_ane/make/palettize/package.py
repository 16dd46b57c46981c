"""A palettized package from another one, weight by weight and straight on disk.

The program's message is edited in place: a weight's `const` becomes the `constexpr_lut_to_dense`
that coremltools 9.0 would write, everything else stays. Weights go from the mapped file into the
new one; one at a time is in memory.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pytest_ane.make.palettize.choose import Grouping, Uses, choose
from pytest_ane.make.palettize.palettes import (
    Palettes,
    Rows,
    TooManyValues,
    default_threads,
    find_palettes,
    pack,
)
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.blob import BlobWriter, blob_writer, byte_size, load, packed
from pytest_ane.mlprogram.census import constant_name
from pytest_ane.mlprogram.errors import BuildError
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
    source: Path,
    destination: Path,
    settings: Mapping[str, Palettize],
    *,
    threads: int | None = None,
    subject: str | None = None,
    errors: dict[str, Rows] | None = None,
    progress: Progress = lambda name, done, total: None,
) -> tuple[str, ...]:
    """Write a copy of a package in which weights are palettized; one that functions share, once.

    Args:
        source: an `.mlpackage` of one ML Program.
        destination: where the new package goes; must not exist. Unfinished after an error.
        settings: by the names of weights' `const` operations; scalar
            palettes without a scale per channel.
        threads: at most so many at once; the default is what the environment says.
        subject: what errors call the package; its path if absent.
        errors: to be filled with the squared error of each row, by the weight's name.
        progress: called before each weight.

    Returns:
        A note on each weight that a setting names and that was left as it is: its name and why.

    Raises:
        ProgramError: the source is damaged.
        BuildError: a weight is NaN or infinite, or the program is too old for the settings.
    """
    model = read_package(source)
    if not isinstance(model, MLModel):
        raise BuildError(f"{source}: is a pipeline; compress its models before they are joined.")
    file, message = parse_package(source)
    weights = Path(model.weights)
    shutil.copytree(source, destination, ignore=_but(file, weights))
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


def _but(file: Path, weights: Path) -> Any:
    """For `copytree`: leave out the model file and the weights, which are written again."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [n for n in names if Path(folder) == weights or Path(folder, n) == file]

    return ignored


class _Stored(NamedTuple):
    """What functions that share a weight share of it once it is palettized."""

    blob: Blob
    shape: tuple[int, ...]
    choice: Grouping

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def _stored(op: Operation, choice: Grouping) -> _Stored:
    value = op.attributes["val"]
    assert isinstance(value.data, Blob)
    assert isinstance(value.type, TensorType)
    return _Stored(value.data, tuple(int(d or 0) for d in value.type.shape), choice)


class _Rewriter:
    """Edits functions one after another; `notes` grow with the weights that are declined."""

    def __init__(
        self,
        model: MLModel,
        settings: Mapping[str, Palettize],
        writer: BlobWriter,
        threads: int,
        subject: str,
        errors: dict[str, Rows],
        progress: Progress,
    ) -> None:
        self.model, self.settings = model, settings
        self.writer, self.threads, self.subject = writer, threads, subject
        self.errors, self.progress = errors, progress
        self.uses = {name: Uses(function) for name, function in model.program.functions.items()}
        self.choices = {
            op: choose(op, settings, self.uses[name])
            for name, function in model.program.functions.items()
            for op in function.walk()
            if op.op == "const"
        }
        self.notes: list[str] = []
        self.moved: dict[Blob, int] = {}
        self.made: dict[_Stored, Any] = {}
        chosen = {_stored(op, c) for op, c in self.choices.items() if isinstance(c, Grouping)}
        self.total, self.done = sum(each.elements for each in chosen), 0

    def function(self, message: Any, function: Function) -> None:
        """Edit a function's block; it is the only one, for what others name would be lost."""
        if len(message.block_specializations) > 1:
            raise BuildError(
                f"{self.subject}: {function.name} has blocks for several opsets; convert it again "
                "for one deployment target."
            )
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
            raise BuildError(
                f"{self.subject}: {constant_name(op)} was to have {choice.groups} palettes of "
                f"{nbits} bits, which need a newer deployment target; convert it for iOS18, or set "
                "granularity = 'per_tensor' and other than 3 bits."
            )
        try:
            palettes = find_palettes(
                weight, method.mode, nbits,
                groups=choice.groups, axis=choice.axis, threads=self.threads,
            )  # fmt: skip
            self.errors[constant_name(op)] = palettes.errors(weight, self.threads)
            # Before iOS 18 there are no indices of 3 bits, which `unique` may come to.
            return palettes.widened(4) if palettes.nbits == 3 and version < _IOS18 else palettes
        except TooManyValues:
            raise
        except ValueError as why:
            raise BuildError(
                f"{self.subject}: {constant_name(op)} {why}; it cannot be palettized, so "
                "repair its source or name it in compression.keep."
            ) from None

    def replace(self, message: Any, op: Operation, choice: Grouping) -> None:
        """Turn a `const` into a `constexpr_lut_to_dense`."""
        stored = _stored(op, choice)
        if stored not in self.made:
            self.progress(constant_name(op), self.done, self.total)
            self.made[stored] = self.expansion(self.find(op, choice))
            self.done += stored.elements
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
        bits = pack(indices, nbits, self.threads)
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
