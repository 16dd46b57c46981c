"""One weight compressed alone, as a build would compress it, and what that takes on disk."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import BuildError
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed

Floats = npt.NDArray[np.float32]


def stored_bytes(shape: tuple[int, ...], settings: Settings, axis: int = 0) -> int:
    """Bytes of a compressed weight's data, tables and scales, as `Weight.compressed_bytes`.

    N weights take 2N bytes in fp16; as indices of b bits N b / 8, and 2^b values of 2 bytes for
    each table; as integers of b bits N b / 8, and for each scale 2 bytes, and the bits of an offset
    with `mode = "linear"`.

    Args:
        shape: of the weight.
        settings: palettes of single values, integers with scales, or none.
        axis: of the output channels.

    Raises:
        BuildError: settings of another kind.
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


def compressed_alone(
    weight: npt.NDArray[Any], settings: Settings, *, axis: int = 0, threads: int = 1
) -> Floats:
    """A weight's values after it was compressed and decoded again.

    Args:
        weight: taken as the fp16 values it is stored as.
        settings: palettes of single values, integers with scales, or none.
        axis: of the output channels.
        threads: at most so many at once.

    Raises:
        BuildError: a value is NaN or infinite, or the groups do not fit the shape.
    """
    with np.errstate(over="ignore"):
        half = weight.astype(np.float16)
    if isinstance(settings, Uncompressed):
        return half.astype(np.float32)
    if isinstance(settings, Linear):
        return _through_coremltools(half, settings)
    assert isinstance(settings, Palettize), settings
    return _palettized(half, settings, axis, threads)


def _tables(shape: tuple[int, ...], settings: Palettize, axis: int) -> int:
    if settings.granularity == "per_tensor":
        return 1
    if shape[axis] % settings.group_size:
        raise BuildError(
            f"{shape[axis]} output channels are not divisible by group_size {settings.group_size}."
        )
    return shape[axis] // settings.group_size


def _palettized(
    half: npt.NDArray[np.float16], settings: Palettize, axis: int, threads: int
) -> Floats:
    from pytest_ane.build.palettize.palettes import find_palettes

    groups = _tables(half.shape, settings, axis)
    try:
        found = find_palettes(
            half, settings.mode, settings.nbits, groups=groups, axis=axis, threads=threads
        )
    except ValueError as why:
        raise BuildError(f"A weight {list(half.shape)} {why}.") from None
    moved = np.swapaxes(found.indices, 0, axis)
    values = np.empty(moved.shape, np.float32)
    for table, rows, out in zip(
        found.luts.astype(np.float32),
        np.split(moved, groups),
        np.split(values, groups),
        strict=True,
    ):
        np.take(table, rows, out=out)
    return np.ascontiguousarray(np.swapaxes(values, 0, axis))


def _through_coremltools(half: npt.NDArray[np.float16], settings: Linear) -> Floats:
    """Through a program of one convolution or product that has this weight and no other."""
    from pytest_ane.build.census import find_weights
    from pytest_ane.build.compress import compress
    from pytest_ane.build.decode import decoded
    from pytest_ane.mil import read_model

    with TemporaryDirectory() as folder:
        package = Path(folder, "weight.mlpackage")
        compress(_program(half), settings.model_copy(update={"weight_threshold": 0}), package, "it")
        model = read_model(package)
        (found,) = (f for f in find_weights(model) if f.weight.shape == half.shape)
        return np.array(decoded(model, found), np.float32)


def _program(half: npt.NDArray[np.float16]) -> Any:
    from pytest_ane.build.quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    convolution = half.ndim > 2
    shape = (1, *half.shape[1:]) if convolution else (1, half.shape[1])
    fp16 = ct.converters.mil.mil.types.fp16

    @mb.program(  # type: ignore[untyped-decorator]
        input_specs=[mb.TensorSpec(shape=shape, dtype=fp16)], opset_version=ct.target.iOS18
    )
    def program(x: Any) -> Any:
        return mb.conv(x=x, weight=half) if convolution else mb.linear(x=x, weight=half)

    with converter_notes():
        return ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16,
            skip_model_load=True,
        )
