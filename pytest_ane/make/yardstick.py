"""What a compression scheme reaches on an exact weight, which the one in the file is held against.

Palettes are made by our own engine, whose k-means is the best there is; integers and zeros follow
the formulas of coremltools 9.0. The geometry (how many tables or scales, along which axes) is that
of the file, which the census holds against the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pytest_ane.manifest import LinearStep, PalettizeStep, PruneStep, Settings, Step
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.census import Stage, Weight
from pytest_ane.mlprogram.errors import BuildError

Rows = npt.NDArray[np.float64]
_AT_ONCE = 1 << 22
"""Elements simulated at a time, where rows with tables or scales of their own can be parted."""


def steps_for(weight: Weight, settings: Settings) -> tuple[Step, ...]:
    """The steps that concern a weight of this size; none for one of a single dimension.

    coremltools leaves those as they are (`need_compress_const` in
    optimize/coreml/_quantization_passes.py of coremltools 9.0), and so does our own engine.
    """
    if len(weight.shape) < 2:
        return ()
    return tuple(step for step in settings.steps if weight.elements > step.weight_threshold)


def scheme_words(steps: Sequence[Step]) -> str:
    """A scheme in words: `6-bit k-means`, `pruning, then int8 per channel`."""
    return ", then ".join(map(_words, steps))


def has_yardstick(steps: Sequence[Step]) -> bool:
    """Whether it is known what a scheme reaches.

    It is not for palettes of vectors, palettes scaled by channel, palettes of integers (`linear`
    before `palettize`), and zeros in blocks.
    """
    integers = False
    for step in steps:
        if isinstance(step, PalettizeStep):
            if integers or step.cluster_dim > 1 or step.enable_per_channel_scale:
                return False
        elif isinstance(step, LinearStep):
            integers = True
        elif step.block_size is not None:
            return False
    return bool(steps)


def is_kmeans(step: Step) -> bool:
    """Whether a step is k-means, whose tables depend on the engine that makes them."""
    return isinstance(step, PalettizeStep) and step.mode == "kmeans"


def reached(
    read: Callable[[int, int], FloatArray], weight: Weight, steps: Sequence[Step]
) -> Rows | None:
    """Squared error of each row (index along the first axis) after a scheme.

    Args:
        read: gives rows `[start, stop)` of the exact weight, float32.
        weight: as the file has it, for its geometry.
        steps: with `has_yardstick`.

    Returns:
        None where the scheme cannot be applied, such as groups that do not divide the channels.
    """
    height, width = weight.shape[0], weight.elements // max(weight.shape[0], 1)
    span = height
    if len(steps) == 1 and not isinstance(steps[0], PruneStep):
        shared = rows_of_a_table(weight)
        span = min(height, max(1, _AT_ONCE // max(shared * width, 1)) * shared)
    errors = np.empty(height)
    for start in range(0, height, span):
        stop = min(start + span, height)
        exact = read(start, stop)
        try:
            made = _simulate(exact, weight, steps, height)
        except (BuildError, ValueError):
            return None
        np.subtract(made, exact, out=made)
        errors[start:stop] = squares(made)
    return errors


def rows_of_a_table(weight: Weight) -> int:
    """Rows that share a table or a scale; all where groups lie along another axis."""
    height, groups = weight.shape[0], weight.groups
    return height // groups if groups and height % groups == 0 else height


def squares(rows: FloatArray) -> Rows:
    """Sums of squares of `rows [R, ...]`."""
    flat = rows.reshape(len(rows), -1)
    if len(flat) == 1:  # A row as long as a weight: BLAS sums in parts, `einsum` does not.
        return np.array([np.vdot(flat[0], flat[0])], np.float64)
    sums: Rows = np.einsum("ij,ij->i", flat, flat).astype(np.float64)
    return sums


def _simulate(exact: FloatArray, weight: Weight, steps: Sequence[Step], height: int) -> FloatArray:
    """Values after all steps, of rows that are all or some of a weight of `height` rows."""
    stages = {kind: _stage(weight, kind) for kind in (PalettizeStep, LinearStep)}
    values: FloatArray = exact.copy()
    zeros: npt.NDArray[np.bool_] | None = None
    for step in steps:
        if isinstance(step, PruneStep):
            zeros = _zeros(values, step)
        elif isinstance(step, PalettizeStep):
            grid = _grid(weight, stages[PalettizeStep], len(exact), height)
            values = _palettized(values, step, grid)
        else:
            # Integers under a table's scale: one scale for all, or one for each table.
            stage = stages[LinearStep]
            if stage is not None and stage.of_table and stage.count > 1:
                stage = stages[PalettizeStep]
            values = quantized(values, step, _grid(weight, stage, len(exact), height))
        if zeros is not None:
            values[zeros] = 0
    return values


def _stage(weight: Weight, kind: type[Step]) -> Stage | None:
    palette = kind is PalettizeStep
    fits = (s for s in weight.stages if (s.is_palette if palette else s.is_quantization))
    return next(fits, None)


def _grid(weight: Weight, stage: Stage | None, rows: int, height: int) -> tuple[int, ...]:
    """Tables or scales along each axis of some of a weight's rows.

    `blocks` lie along the second axis; for products of three axes and more along the last.
    """
    grid = [1] * len(weight.shape)
    if stage is not None:
        grid[0] = max(1, stage.groups * rows // height)
        grid[-1 if "matmul" in weight.op_types else 1] = max(1, stage.blocks)
    return tuple(grid)


def _palettized(values: FloatArray, step: PalettizeStep, grid: tuple[int, ...]) -> FloatArray:
    from pytest_ane.make.palettize.palettes import default_threads, find_palettes

    axis = max(range(len(grid)), key=grid.__getitem__)
    groups = grid[axis]
    if step.mode == "unique":
        return values
    if math.prod(grid) != groups or values.shape[axis] % groups:
        raise BuildError(f"{values.shape} has no {groups} groups along axis {axis}")
    made: FloatArray = find_palettes(
        values.astype(np.float16), step.mode, step.nbits, groups=groups, axis=axis,
        threads=default_threads(),
    ).values()  # fmt: skip
    return made


def quantized(values: FloatArray, step: LinearStep, grid: tuple[int, ...]) -> FloatArray:
    """Values after linear quantization, dequantized.

    Source: `quantize_weight_by_dtype` in optimize/_utils.py of coremltools 9.0: scale = (high -
    low) / steps, with low = -high and 2^n - 2 steps if symmetric; else 2^n - 1, and 0 in the range.

    Args:
        values: finite, any shape.
        step: its mode and dtype.
        grid: scales along each axis.

    Raises:
        ValueError: the grid does not divide the shape.
    """
    parts = [n for size, count in zip(values.shape, grid, strict=True)
             for n in (count, size // count)]  # fmt: skip
    blocks = values.reshape(parts)
    inner = tuple(range(1, blocks.ndim, 2))
    low, high = blocks.min(inner, keepdims=True), blocks.max(inner, keepdims=True)
    symmetric = step.mode == "linear_symmetric"
    levels = 2**step.nbits - (2 if symmetric else 1)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = ((high - low) / levels).astype(np.float16).astype(np.float32)
    scale[scale == 0] = 1
    zero = levels // 2 if symmetric else np.rint(-low / scale)
    integers = np.clip(np.rint(blocks / scale), -zero, levels - zero)
    return np.asarray((integers * scale).reshape(values.shape), np.float32)


def _zeros(values: FloatArray, step: PruneStep) -> npt.NDArray[np.bool_]:
    """Which values pruning sets to zero."""
    from pytest_ane.make.optimize import percentile

    sizes = np.abs(values)
    if step.threshold is not None:
        return np.asarray(sizes <= np.float32(step.threshold))
    if step.target_sparsity is not None:
        return np.asarray(sizes <= percentile(sizes, step.target_sparsity * 100))
    assert step.n_m_ratio is not None
    n, m = step.n_m_ratio
    axis = 1 if step.dim is None else step.dim
    lines = np.moveaxis(sizes, axis, -1)
    # A last group that is not full is filled up with zeros, the first to be chosen.
    padded = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, -lines.shape[-1] % m)])
    groups = padded.reshape(*padded.shape[:-1], -1, m)
    zeros = np.zeros(groups.shape, bool)
    np.put_along_axis(zeros, np.argsort(groups, axis=-1, kind="stable")[..., :n], True, axis=-1)
    flat = zeros.reshape(padded.shape)[..., : lines.shape[-1]]
    return np.asarray(np.moveaxis(flat, -1, axis))


def _words(step: Step) -> str:
    if isinstance(step, PruneStep):
        return "pruning"
    if isinstance(step, LinearStep):
        return f"{step.dtype} {step.granularity.replace('_', ' ')}"
    if step.mode == "unique":
        return "lossless palettization"
    kind = "k-means" if step.mode == "kmeans" else "uniform palettization"
    pairs = f" of vectors of {step.cluster_dim}" if step.cluster_dim > 1 else ""
    scaled = " scaled by channel" if step.enable_per_channel_scale else ""
    return f"{step.nbits}-bit {kind}{pairs}{scaled}"
