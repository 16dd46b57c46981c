"""Compression of a Core ML model by the manifest's settings, and of one weight alone.

Scalar palettes are made on disk by `palettize`; all else goes before that through coremltools: its
passes, in order, with their settings. It takes packages of one function, so those of several are
taken apart and joined again.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard
from unittest.mock import patch

import numpy as np

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.disk import temporary_files_in
from pytest_ane.make.distortion import Rows, percentile, quantized
from pytest_ane.make.palettize.choose import constants
from pytest_ane.manifest import Compression, Linear, Palettize, Prune, Settings, Step, Uncompressed
from pytest_ane.manifest.compression import WAYS
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import AneError, BuildError, ProgramError
from pytest_ane.mlprogram.package import package_functions, parse_package

if TYPE_CHECKING:
    from pytest_ane.make.palettize._palettes import Progress


def compress(
    source: Path,
    compression: Compression,
    package: Path,
    subject: str,
    errors: dict[str, Rows] | None = None,
    progress: Progress = lambda name, done, total: None,
) -> tuple[str, ...]:
    """Compress the weights of a package, which stays as it is, into one that must not exist.

    `errors` is filled with the squared error of each row of every weight that our own engine
    palettizes, by the weight's name; `progress` is as of `palettize`. Gives coremltools' notes,
    such as a weight that was declined; `BuildError` where a setting is refused, or a weight cannot
    be compressed.
    """
    notes: tuple[str, ...] = ()
    with TemporaryDirectory(dir=package.parent) as folder:
        saved = source
        if not _all_fast(compression):
            saved = Path(folder, package.name)
            notes = _through_coremltools(source, compression, saved, subject)
        methods = {n: compression.for_weight(n, ops) for n, ops in constants(saved).items()}
        if settings := {name: method for name, method in methods.items() if _fast(method)}:
            from pytest_ane.make.palettize._palettes import palettize

            return notes + palettize(
                saved, package, settings, subject=subject, errors=errors, progress=progress
            )
        if saved == source:
            shutil.copytree(source, package)
        else:
            saved.replace(package)
    return notes


def compress_own_package(
    source: Path, compression: Compression, package: Path, progress: Progress
) -> tuple[str, ...]:
    """As `compress`, of what anyone made: an ML Program of one function or several.

    Weights that are compressed already, and all but the program and its weights, stay as they are.
    `ProgramError` where it is none.
    """
    subject = str(source)
    if _all_fast(compression):
        return compress(source, compression, package, subject, progress=progress)
    with TemporaryDirectory(dir=package.parent) as folder, temporary_files_in(Path(folder)):
        made = Path(folder, package.name)
        with _failing_as(subject):
            if names := package_functions(source):
                notes = _function_by_function(source, names, compression, made)
            else:
                notes = compress(source, compression, made, subject)
        _replace_program(source, made, package)
    return notes


def _function_by_function(
    source: Path, names: Sequence[str], compression: Compression, made: Path
) -> tuple[str, ...]:
    """Through coremltools, which compresses packages of one function only; then they are joined."""
    joined = import_coremltools().utils.MultiFunctionDescriptor()
    joined.default_function_name, notes = names[0], list[str]()
    for number, name in enumerate(names):
        single = extract_function(source, name, made.with_name(f"{number}-plain.mlpackage"))
        small = made.with_name(f"{number}.mlpackage")
        notes += compress(single, compression, small, f"{source}[{name}]")
        joined.add_function(str(small), "main", name)
    with converter_notes():
        import_coremltools().utils.save_multifunction(joined, str(made))
    return tuple(dict.fromkeys(notes))


def _replace_program(source: Path, made: Path, package: Path) -> None:
    """Write a copy of `source` with the program and the weights of `made`."""
    (file, message), (_, new) = parse_package(source), parse_package(made)
    message.mlProgram.CopyFrom(new.mlProgram)
    message.specificationVersion = new.specificationVersion
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("weights"))
    target = package / file.relative_to(source)
    target.write_bytes(message.SerializeToString())
    for weights in made.rglob("weight.bin"):
        (target.parent / "weights").mkdir(exist_ok=True)
        weights.replace(target.parent / "weights" / weights.name)


def _all_fast(compression: Compression) -> bool:
    return all(_fast(each) or isinstance(each, Uncompressed) for each in compression.every())


def _fast(method: Settings) -> TypeGuard[Palettize]:
    """Whether our own engine makes these palettes."""
    return (
        isinstance(method, Palettize)
        and method.engine == "fast"
        and method.cluster_dim == 1
        and not method.enable_per_channel_scale
        and not method.joint
    )


def _through_coremltools(
    source: Path, compression: Compression, package: Path, subject: str
) -> tuple[str, ...]:
    """Compress what our own engine does not palettize: all first steps, then all second ones."""
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        model = import_coremltools().models.MLModel(str(source), skip_model_load=True)
        weights = cto.get_weights_metadata(model, weight_threshold=0)
    methods = {}
    for name, weight in weights.items():
        method = compression.for_weight(name, {op.op_type for op in weight.child_ops})
        if not _fast(method):
            methods[name] = method
            _check_finite(weight.val, method, f"{subject}: {name}")
    kinds = {
        Prune: cto.prune_weights,
        Palettize: cto.palettize_weights,
        Linear: cto.linear_quantize_weights,
    }
    notes: list[str] = []
    turns = max((len(each.steps) for each in methods.values()), default=0)
    for turn, (kind, apply) in product(range(turns), kinds.items()):
        configs = {
            "".join((name, *suffixes)): _config(cto, method.steps[turn])
            for name, method in methods.items()
            if turn < len(method.steps) and isinstance(method.steps[turn], kind)
            for length in range(turn + 1)
            for suffixes in product(_SUFFIXES, repeat=length)
        }
        # Before iOS 18 the option itself is refused.
        option = {"joint_compression": True} if turn else {}
        config = cto.OptimizationConfig(op_name_configs=configs)
        if configs:
            with (
                _failing_as(subject), exact_percentiles(),
                converter_notes() as lines, _each_weight(lines),
            ):  # fmt: skip
                model = apply(model, config, **option)
            notes += lines
    with converter_notes():
        model.save(str(package))
    return tuple(notes)


def _check_finite(values: Any, method: Settings, weight: str) -> None:
    """Refuse NaN, of which coremltools makes scales that are NaN, or a channel of zeros."""
    least = min((step.weight_threshold for step in method.steps), default=math.inf)
    if values.size > least and not np.isfinite(values).all():
        raise BuildError(
            f"{weight} holds a NaN or an infinity; it cannot be compressed, so repair its source "
            "or name it in compression.keep."
        )


@contextmanager
def _failing_as(subject: str) -> Iterator[None]:
    """Whatever goes wrong inside coremltools, an AssertionError or an IndexError too, as ours."""
    try:
        yield
    except (AneError, OSError):
        raise
    except Exception as error:
        message = str(error) or type(error).__name__
        raise BuildError(f"{subject} could not be compressed: {message}") from error


def stored_bytes(shape: tuple[int, ...], settings: Settings, axis: int = 0) -> int:
    """Bytes of a compressed weight's data, tables and scales, as `Weight.compressed_bytes`.

    N weights take 2N bytes in fp16; as indices of b bits N b / 8, and 2^b values of 2 bytes for
    each table; as integers of b bits N b / 8, and for each scale 2 bytes, and the bits of an offset
    with `mode = "linear"`. `axis` is that of the output channels; `BuildError` for other settings.
    """
    size = math.prod(shape)
    if isinstance(settings, Uncompressed):
        return 2 * size
    if isinstance(settings, Palettize) and settings.mode != "unique":
        tables = _tables(shape, settings, axis)
        return -(-size * settings.nbits // 8) + tables * 2 * 2**settings.nbits
    if isinstance(settings, Linear) and settings.granularity != "per_block":
        scales = shape[axis] if settings.granularity == "per_channel" else 1
        offsets = -(-scales * settings.nbits // 8) if settings.mode == "linear" else 0
        return -(-size * settings.nbits // 8) + 2 * scales + offsets
    raise BuildError(f"no formula says what {settings.method} takes on disk.")


def compress_weight(weight: Array, settings: Settings, *, axis: int = 0) -> FloatArray:
    """A weight's values, float32, after it was stored in fp16, compressed and decompressed again.

    Settings are palettes of single values, integers with scales, or none; `axis` is that of the
    output channels. `BuildError` for values that are not finite, and groups that do not fit the
    shape.
    """
    with np.errstate(over="ignore"):
        half = weight.astype(np.float16)
    if isinstance(settings, Uncompressed):
        return half.astype(np.float32)
    if isinstance(settings, Linear):
        if not np.isfinite(half).all():
            raise BuildError(f"A weight {list(half.shape)} holds a NaN or an infinity.")
        return quantized(half.astype(np.float32), settings, _scales(half.shape, settings, axis))
    assert isinstance(settings, Palettize), settings
    from pytest_ane.make.palettize._palettes import find_palettes

    groups = _tables(half.shape, settings, axis)
    try:
        return find_palettes(
            half, settings.mode, settings.nbits, groups=groups, axis=axis, threads=1
        ).values()
    except ValueError as why:
        raise BuildError(f"A weight {list(half.shape)} {why}.") from None


def _tables(shape: tuple[int, ...], settings: Palettize, axis: int) -> int:
    if settings.granularity == "per_tensor":
        return 1
    if shape[axis] % settings.group_size:
        raise BuildError(
            f"{shape[axis]} output channels are not divisible by group_size {settings.group_size}."
        )
    return shape[axis] // settings.group_size


def _scales(shape: tuple[int, ...], settings: Linear, axis: int) -> tuple[int, ...]:
    """Scales along each axis; blocks lie along the other one of the first two."""
    grid = [1] * len(shape)
    if settings.granularity != "per_tensor":
        grid[axis] = shape[axis]
    if settings.granularity == "per_block":
        inputs = 0 if axis else 1
        if shape[inputs] % settings.block_size:
            raise BuildError(
                f"{shape[inputs]} input channels are not divisible by block_size "
                f"{settings.block_size}."
            )
        grid[inputs] = shape[inputs] // settings.block_size
    return tuple(grid)


_SUFFIXES = ("_sparsified", "_palettized", "_quantized")
"""What the passes append to a weight's name, by which a later one finds it."""


def _config(cto: Any, step: Step) -> Any:
    if isinstance(step, Prune):
        way = next(key for key in WAYS if getattr(step, key) is not None)
        make = cto.OpThresholdPrunerConfig if way == "threshold" else cto.OpMagnitudePrunerConfig
        return make(**{way: getattr(step, way)}, weight_threshold=step.weight_threshold)
    shared = {"granularity": step.granularity, "weight_threshold": step.weight_threshold}
    if isinstance(step, Linear):
        block = {"block_size": step.block_size} if step.granularity == "per_block" else {}
        return cto.OpLinearQuantizerConfig(mode=step.mode, dtype=step.dtype, **shared, **block)
    shared |= {
        "group_size": step.group_size,
        "enable_per_channel_scale": step.enable_per_channel_scale,
    }
    if step.mode == "kmeans" and step.engine == "fast" and step.cluster_dim == 1:
        own = partial(_palette, nbits=step.nbits)
        return cto.OpPalettizerConfig(mode="custom", lut_function=own, **shared)
    nbits = None if step.mode == "unique" else step.nbits
    return cto.OpPalettizerConfig(
        mode=step.mode, nbits=nbits, cluster_dim=step.cluster_dim, **shared
    )


def _palette(weights: Array, nbits: int) -> tuple[Array, Array]:
    """A k-means palette as a `lut_function`; of integers, which a joint pass palettizes, such."""
    from pytest_ane.make.palettize._palettes import find_palettes

    with np.errstate(over="ignore"):
        stored = weights.astype(np.float16)
    made = find_palettes(stored, "kmeans", nbits, groups=1, axis=0, threads=1)
    integers = weights.dtype.kind in "iu"
    lut = np.rint(made.luts[0]).astype(weights.dtype) if integers else made.luts[0]
    return lut, made.indices.reshape(-1)


@contextmanager
def exact_percentiles() -> Iterator[None]:
    """Let coremltools' passes, and nobody else, see a `numpy` whose percentile is exact.

    coremltools 9.0 asks it for the largest magnitude to set to zero. Of fp16 values numpy computes
    the position in fp16 as well (its issue 29003, there in 2.3): beyond 65,504 elements the answer
    is NaN, and the whole weight is stored unpruned, in the sparse form.
    """
    import coremltools.optimize.coreml._quantization_passes as passes

    numpy = SimpleNamespace(**{**vars(np), "percentile": percentile})
    with patch.object(passes, "np", numpy):
        yield


_INDIVISIBLE = re.compile(
    r"(\d+)\)? is not divisible by (channel_group_size|cluster_dim|block size) \(?(\d+)"
)
_CHANNELS = {
    "channel_group_size": "output channels are not divisible by group_size",
    "cluster_dim": "channels of a group are not divisible by cluster_dim",
    "block size": "channels are not divisible by block_size",
}


@contextmanager
def _each_weight(lines: list[str]) -> Iterator[None]:
    """Let a weight that coremltools declines stay as it is, and every note name its weight.

    coremltools 9.0 divides a weight by its scales in place before it sees whether its channels can
    be grouped (its pull request 2777).
    """
    import coremltools.optimize.coreml._quantization_passes as passes

    def watched(transform: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def transform_op(self: Any, op: Any) -> None:
            stored, said = op.outputs[0].val, len(lines)
            before = np.copy(stored)
            transform(self, op)
            if op.enclosing_block is not None and isinstance(stored, np.ndarray):
                np.copyto(stored, before)
            if why := next(filter(None, map(_INDIVISIBLE.search, lines[said:])), None):
                size, key, by = why.groups()
                lines[said:] = [f"{op.name}: {size} {_CHANNELS[key]} {by}"]

        return transform_op

    with ExitStack() as stack:
        # It tells blocks that do not fit to the root logger.
        stack.enter_context(patch.object(passes.optimize_utils, "_logger", passes.logger))
        for name in ("prune_weights", "palettize_weights", "linear_quantize_weights"):
            own = watched((kind := getattr(passes, name)).transform_op)
            stack.enter_context(patch.object(kind, "transform_op", own))
        yield


def extract_function(package: Path, function: str, target: Path) -> Path:
    """Write `target`, whose `main` is a function of `package`; weights are linked if they can.

    `ProgramError` where the package has no such function, `BuildError` where none can be written.
    """
    try:
        try:
            shutil.copytree(package, target, copy_function=os.link)
        except shutil.Error:  # Another disk.
            shutil.rmtree(target)
            shutil.copytree(package, target)
        file, message = parse_package(target)
        description, functions = message.description, message.mlProgram.functions
        declared = next((f for f in description.functions if f.name == function), None)
        if declared is None or function not in functions:
            raise ProgramError(f"{package}: has no function {function!r}.")
        program = type(functions[function])()
        program.CopyFrom(functions[function])
        functions.clear()
        functions["main"].CopyFrom(program)
        for field in ("input", "output", "state"):
            del getattr(description, field)[:]
            getattr(description, field).extend(getattr(declared, field))
        del description.functions[:]
        description.defaultFunctionName = ""
        write_atomically(file, message.SerializeToString())
    except OSError as error:
        raise BuildError(
            f"{package}: its function {function} cannot be written to {target} ({error.strerror}); "
            "free space, or set TMPDIR."
        ) from None
    return target
