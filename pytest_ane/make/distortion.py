"""What compression did to each weight: squared error against the uncompressed one, by row.

Weights are decoded a block of rows at a time: none is ever held whole in a wider type where its
rows can be decoded alone. A row is an index along the first axis.

Errors are held against what the scheme reaches on the exact weight. Palettes are made by our own
engine, whose k-means is the best there is; integers and zeros follow the formulas of coremltools
9.0. The geometry (how many tables or scales, along which axes) is that of the file, which the
census holds against the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.make.stored import stored_steps
from pytest_ane.manifest import Compression, Linear, Palettize, Prune, Settings, Step
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.pairing import (
    Pair,
    pair_weights,
    same_values,
    typeless,
    values_as,
    weight_name,
)  # fmt: skip
from pytest_ane.mlprogram.records import MLModel, TensorType
from pytest_ane.mlprogram.weights import ProgramWeight, Stage, Weight, bits_of, decompress

_AT_ONCE = 1 << 18
"""Elements compared at a time: three buffers of 1 MB stay in the cache."""
_SPREAD = 3.0
"""Times the mean error of the rows that share a k-means table, what any row is taken to need where
another engine may have made the table: that is best for all of its rows together, and one that is
nearly as good may leave a row's outliers out. 4-bit tables of coremltools' own k-means cost a row
of SmolLM2 up to 8 times this mean.
"""
_HALF_STEP = 2.0**-22, 2.0**-50
"""Squared error of rounding to fp16: of a value's square at most the first, and never below the
second (half a step among subnormal numbers)."""
_MARKED = 2.0
"""Rows next to the worst that are named with it lose more than this times what is reached."""
_STRAY = 0.25
"""Steps of its table by which one of `strays` is further off than need be."""
_FEW_STRAYS = 1e-3
"""Share of a weight's elements; where more are rounded otherwise, that is how it was made."""
_FEW = 8
"""Elements up to which a constant may be left out, for converters fold them in various ways."""
FP16 = "fp16"
"""The scheme of weights that are not compressed."""


@dataclass(frozen=True)
class Distortion:
    """One weight's squared error from compression.

    Attributes:
        sse: sum of squared differences from the uncompressed weight; NaN if one is not finite.
        energy: sum of squares of the uncompressed weight.
        scheme: how it was to be stored, in words: `6-bit k-means`; `fp16` for a weight that is not
            compressed; empty where nobody knows.
        reached: the sum of squares that the scheme reaches on the uncompressed weight, not below
            what rounding to fp16 costs; for `fp16` that of one step of each element.
        row_error: the greatest ratio of a row's squared error to what the scheme reaches there; for
            `fp16` of an element's to that of one step. None, as `reached`, without a yardstick.
        rows: first and last row of those that lose much, about the worst.
        gain: how many times larger the weight is than the scheme leaves it, by least squares.
        strays: elements that have another value than the nearest of those that their table or scale
            gives them, where nearly all have that.
    """

    name: str
    sse: float
    energy: float
    scheme: str = ""
    reached: float | None = None
    row_error: float | None = None
    rows: tuple[int, int] = (0, 0)
    gain: float = 1.0
    strays: int = 0

    def __post_init__(self) -> None:
        if self.sse < 0 or self.energy < 0 or (self.reached or 0) < 0:
            raise ValueError("a sum of squares is negative")
        if (self.row_error or 0) < 0 or not 0 <= self.rows[0] <= self.rows[1]:
            raise ValueError("a ratio or a row is negative")
        if (self.reached is None) != (self.row_error is None):
            raise ValueError("of a weight's and its rows' yardstick there is one only")

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB, `10 log10(energy / sse)`; infinite where nothing is lost."""
        if not math.isfinite(self.sse) or not math.isfinite(self.energy):
            return math.nan
        if not self.sse:
            return math.inf
        ratio = self.energy / self.sse
        return 10 * math.log10(ratio) if ratio else -math.inf

    @property
    def error(self) -> float | None:
        """`sse / reached`, None without a yardstick; 0 where nothing is lost."""
        if self.reached is None or not self.sse:
            return None if self.reached is None else 0.0
        return self.sse / self.reached if self.reached else math.inf


@dataclass(frozen=True)
class WeightComparison:
    """A package's weights against those of its uncompressed form, as `pair_weights` pairs them.

    `changed` are single numbers that differ by more than two steps of fp16.
    """

    distortions: tuple[Distortion, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def compare_weights(
    model: MLModel,
    against: MLModel,
    compression: Compression | None = None,
    errors: Mapping[str, Rows] | None = None,
    *,
    own: bool = False,
) -> WeightComparison:
    """Compare a package's weights with those of its uncompressed form.

    Without `compression` compressed weights have no yardstick. `errors` are those by row that
    compression itself reached, by the weight's name; for all other weights the scheme is applied to
    the uncompressed one. Of a package that somebody brought, an `own` one, the file tells what
    `compression` does not, and damage is looked for that no build makes. `ProgramError` or
    `ExecutionError` where a weight is not there, or cannot be decoded.
    """
    known = errors or {}
    results: dict[str, Distortion] = {}
    pairs = pair_weights(model, against)
    for weight, original in pairs:
        if weight is None or original is None:
            continue
        name = weight_name(weight)
        made = distortion(
            model, weight, against, original, compression, known.get(weight.weight.name), own=own
        )
        worst = (results.get(name, made).row_error or 0) < (made.row_error or 0)
        if name not in results or worst or not math.isfinite(made.sse):
            results[name] = made
    return WeightComparison(
        tuple(results.values()),
        _lacking(pairs, 0),
        _lacking(pairs, 1),
        tuple(_changed(model, against)),
    )


def _lacking(pairs: Sequence[Pair], side: int) -> tuple[str, ...]:
    """Weights without a counterpart on a side, but for those that another function has there."""
    met = {_key(weight) for pair in pairs if all(pair) and (weight := pair[1 - side])}
    lacking = (pair[1 - side] for pair in pairs if pair[side] is None)
    left = (w.weight for w in lacking if w is not None and _key(w) not in met)
    return tuple(dict.fromkeys(weight.name for weight in left if weight.elements > _FEW))


def _key(weight: ProgramWeight) -> tuple[Any, ...]:
    return weight_name(weight), weight.weight.shape


def _changed(model: MLModel, against: MLModel) -> Iterator[str]:
    numbers, originals = dict(_numbers(model)), dict(_numbers(against))
    for name in numbers.keys() & originals.keys():
        a, b = np.float16(numbers[name]), np.float16(originals[name])
        if a != b and not abs(np.float32(a) - np.float32(b)) <= 2 * abs(np.spacing(b)):
            yield name


def _numbers(model: MLModel) -> Iterator[tuple[str, float]]:
    for label, function in model.program.functions.items():
        for op in function.walk():
            value = op.attributes.get("val") if op.op == "const" else None
            kind = value.type if value is not None else None
            if value is None or not isinstance(kind, TensorType) or kind.shape:
                continue
            if kind.dtype.value in ("fp16", "fp32") and bits_of(kind):
                yield f"{label}/{typeless(op.name)}", float(np.asarray(load(model, value)))


def distortion(
    model: MLModel,
    weight: ProgramWeight,
    against: MLModel,
    original: ProgramWeight,
    compression: Compression | None = None,
    errors: Rows | None = None,
    *,
    own: bool = False,
) -> Distortion:
    """A weight's squared error against its counterpart; see `compare_weights`."""
    kind = weight.weight
    values = decompress(model, weight)
    exact = values_as(values, against, original)
    lost, energy, worst, size = _compare(kind, values, exact)
    sse, whole = float(lost.sum()), float(energy.sum())
    if not math.isfinite(sse) or not math.isfinite(whole):
        return Distortion(kind.name, sse, whole)
    if not kind.stages:
        step = 4 * (_HALF_STEP[0] * whole + _HALF_STEP[1] * kind.elements)
        return Distortion(kind.name, sse, whole, FP16, step, float(worst.max()), _extent(worst))
    settings = compression and compression.for_weight(kind.name, kind.op_types)
    schemes = steps_for(kind, settings) if settings else ()
    if own and compression is None:
        schemes = stored_steps(model, weight)
    scheme, spread, gain, strays = in_words(schemes), 0.0, 1.0, 0
    if errors is None and _has_yardstick(schemes):
        made = _reached(exact, kind, schemes)
        if made is not None:
            errors, sizes = made
            if own:
                gain = _gain(size, whole, sse) / _gain(sizes, whole, float(errors.sum()))
                even = any(isinstance(s, Palettize) and s.mode == "uniform" for s in schemes)
                strays = _strays(kind, values, exact, even=even)
        # Of k-means alone the tables depend on the engine that makes them.
        kmeans = (isinstance(step, Palettize) and step.mode == "kmeans" for step in schemes)
        spread = _SPREAD * any(kmeans)
    if errors is None or errors.shape != lost.shape:
        return Distortion(kind.name, sse, whole, scheme)
    rounding = _HALF_STEP[0] * energy + _HALF_STEP[1] * kind.elements / len(lost)
    together = rows_of_a_table(kind)
    shared = np.repeat(errors.reshape(-1, together).mean(1), together)
    ratios = lost / np.maximum(np.maximum(errors, spread * shared), rounding)
    total = max(float(errors.sum()), float(rounding.sum()))
    return Distortion(
        kind.name, sse, whole, scheme, total, float(ratios.max()), _extent(ratios), gain, strays
    )


def _gain(size: float, exact: float, lost: float) -> float:
    """How many times larger than what fits best, of sums of squares, of which `lost` of both."""
    both = (size + exact - lost) / 2
    return size / both if both > 0 else math.inf


def _strays(kind: Weight, values: Any, exact: Any, *, even: bool) -> int:
    """Elements that are further off than the nearest value that those of their table have.

    Of weights that were rounded otherwise, as by GPTQ, there are many, and none is counted. The
    index of an `even` table is of the distance to its first entry, which coremltools 9.0 takes, and
    divides, in fp16 (`compress_uniform` in optimize/coreml/_quantization_passes.py).
    """
    together, found = rows_of_a_table(kind), 0
    if kind.blocks > 1 or not kind.stages:
        return 0
    for start in range(0, kind.shape[0], together):
        shape = (together, *kind.shape[1:])
        a, b = (
            read_rows(each, start, start + together, np.empty(shape, np.float32)).ravel()
            for each in (values, exact)
        )
        entries = np.unique(a)
        if len(entries) < 2:
            continue
        right = np.clip(np.searchsorted(entries, b), 1, len(entries) - 1)
        left = entries[right - 1]
        nearest = np.minimum(np.abs(b - left), np.abs(b - entries[right]))
        beyond = np.abs(a - b) - nearest
        rounding = 2.0**-9 * (np.abs(b) + even * np.abs(b - entries[0]))
        found += int((beyond > _STRAY * (entries[right] - left) + rounding).sum())
    return found if found <= max(1, _FEW_STRAYS * kind.elements) else 0


def _compare(kind: Weight, values: Any, exact: Any) -> tuple[Rows, Rows, Rows, float]:
    """By row: squared error, energy; and the largest of an element, in squares of a step of fp16.

    The third is for weights that are not compressed only. Last the sum of squares of `values`.
    """
    size = 0.0
    height, width = kind.shape[0], math.prod(kind.shape[1:])
    step = max(1, min(height, _AT_ONCE // max(width, 1)))
    buffers = np.empty((2, step, *kind.shape[1:]), np.float32)
    lost, energy, worst = (np.zeros(height) for _ in range(3))
    for start in range(0, height, step):
        rows = slice(start, min(start + step, height))
        a = read_rows(values, rows.start, rows.stop, buffers[0, : rows.stop - start])
        b = read_rows(exact, rows.start, rows.stop, buffers[1, : rows.stop - start])
        with np.errstate(all="ignore"):
            # A mask is a constant like any other: where it is the same, nothing is lost.
            if not kind.stages and not (np.isfinite(a).all() and np.isfinite(b).all()):
                same = same_values(a, b)
                a[same] = b[same] = 0
            energy[rows] = squares(b)
            size += float(squares(a).sum())
            np.subtract(a, b, out=a)
            lost[rows] = squares(a)
            if not kind.stages and lost[rows].any():
                steps = np.maximum(np.abs(b) * 2.0**-10, 2.0**-24)
                worst[rows] = np.square(a / steps).reshape(len(a), -1).max(1)
    return lost, energy, worst, size


def _extent(ratios: Rows) -> tuple[int, int]:
    """The worst row, and those next to it that are marked too."""
    first = last = int(ratios.argmax())
    while first and ratios[first - 1] > _MARKED:
        first -= 1
    while last + 1 < len(ratios) and ratios[last + 1] > _MARKED:
        last += 1
    return first, last


def read_rows(weight: Any, start: int, stop: int, out: Array) -> Array:
    """Decoded rows of a weight from `decompress`, written to `out [stop - start, ...]`."""
    if isinstance(weight, StreamedWeight):
        weight.rows(start, stop, out)
    else:
        np.copyto(out, weight[start:stop])
    return out


Rows = npt.NDArray[np.float64]
_SIMULATED_AT_ONCE = 1 << 22
"""Elements simulated at a time, where rows with tables or scales of their own can be parted."""


def steps_for(weight: Weight, settings: Settings) -> tuple[Step, ...]:
    """The steps that concern a weight of this size; none for one of a single dimension.

    coremltools leaves those as they are (`need_compress_const` in
    optimize/coreml/_quantization_passes.py of coremltools 9.0), and so does our own engine.
    """
    if len(weight.shape) < 2:
        return ()
    return tuple(step for step in settings.steps if weight.elements > step.weight_threshold)


def _has_yardstick(steps: Sequence[Step]) -> bool:
    """Whether it is known what a scheme reaches; not palettes of vectors, scaled or of integers."""
    palettes = [step for step in steps if isinstance(step, Palettize)]
    methods = [step.method for step in steps]
    integers = "palettize" in methods[methods.index("linear") :] if "linear" in methods else False
    odd = any(step.cluster_dim > 1 or step.enable_per_channel_scale for step in palettes)
    return bool(steps) and not odd and not integers


def _reached(values: Any, weight: Weight, steps: Sequence[Step]) -> tuple[Rows, float] | None:
    """Squared error of each row (index along the first axis) of exact values after a scheme.

    With it the sum of squares of what the scheme makes. None where the scheme cannot be applied,
    such as groups that do not divide the channels.
    """
    height, width = weight.shape[0], weight.elements // max(weight.shape[0], 1)
    span = height
    if len(steps) == 1 and not isinstance(steps[0], Prune):
        shared = rows_of_a_table(weight)
        span = min(height, max(1, _SIMULATED_AT_ONCE // max(shared * width, 1)) * shared)
    errors, size = np.empty(height), 0.0
    for start in range(0, height, span):
        stop = min(start + span, height)
        exact = read_rows(
            values, start, stop, np.empty((stop - start, *weight.shape[1:]), np.float32)
        )
        try:
            made = _simulate(exact, weight, steps, height)
        except (BuildError, ValueError):
            return None
        size += float(squares(made).sum())
        np.subtract(made, exact, out=made)
        errors[start:stop] = squares(made)
    return errors, size


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
    table = next((stage for stage in weight.stages if stage.is_palette), None)
    scale = next((stage for stage in weight.stages if stage.is_quantization), None)
    values: FloatArray = exact.copy()
    zeros: npt.NDArray[np.bool_] | None = None
    for step in steps:
        if isinstance(step, Prune):
            zeros = _zeros(values, step)
        elif isinstance(step, Palettize):
            values = _palettized(values, step, _grid(weight, table, len(exact), height))
        else:
            # Integers under a table's scale: one scale for all, or one for each table.
            per_table = scale is not None and scale.of_table and scale.count > 1
            stage = table if per_table else scale
            values = quantized(values, step, _grid(weight, stage, len(exact), height))
        if zeros is not None:
            values[zeros] = 0
    return values


def _grid(weight: Weight, stage: Stage | None, rows: int, height: int) -> tuple[int, ...]:
    """Tables or scales along each axis of some of a weight's rows.

    `blocks` lie along the second axis; for products of three axes and more along the last.
    """
    grid = [1] * len(weight.shape)
    if stage is not None:
        grid[0] = max(1, stage.groups * rows // height)
        grid[-1 if "matmul" in weight.op_types else 1] = max(1, stage.blocks)
    return tuple(grid)


def _palettized(values: FloatArray, step: Palettize, grid: tuple[int, ...]) -> FloatArray:
    from pytest_ane.make.palettize._palettes import default_threads, find_palettes

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


def quantized(values: FloatArray, step: Linear, grid: tuple[int, ...]) -> FloatArray:
    """Values after linear quantization, dequantized.

    Source: `quantize_weight_by_dtype` in optimize/_utils.py of coremltools 9.0: scale = (high -
    low) / steps, with low = -high and 2^n - 2 steps if symmetric; else 2^n - 1, and 0 in the range.
    `grid` has the scales along each axis, which divide it; values are finite.
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


def _zeros(values: FloatArray, step: Prune) -> npt.NDArray[np.bool_]:
    """Which values pruning sets to zero."""
    sizes = np.abs(values)
    if step.threshold is not None:
        return np.asarray(sizes <= np.float32(step.threshold))
    if step.target_sparsity is not None:
        return np.asarray(sizes <= percentile(sizes, step.target_sparsity * 100))
    assert step.n_m_ratio is not None
    n, m = step.n_m_ratio
    lines = np.moveaxis(sizes, 1, -1)
    # A last group that is not full is filled up with zeros, the first to be chosen.
    padded = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, -lines.shape[-1] % m)])
    groups = padded.reshape(*padded.shape[:-1], -1, m)
    zeros = np.zeros(groups.shape, bool)
    np.put_along_axis(zeros, np.argsort(groups, axis=-1, kind="stable")[..., :n], True, axis=-1)
    flat = zeros.reshape(padded.shape)[..., : lines.shape[-1]]
    return np.asarray(np.moveaxis(flat, -1, 1))


def percentile(values: Array, q: float) -> Any:
    """The lower of the two values that numpy interpolates: `q` percent are at most as large."""
    flat = values.ravel()
    position = math.floor((flat.size - 1) * q / 100)
    return np.partition(flat, position)[position]


def in_words(steps: Sequence[Step]) -> str:
    """A scheme for people: `pruning, then 6-bit k-means`."""
    return ", then ".join(map(_words, steps))


def _words(step: Step) -> str:
    if isinstance(step, Prune):
        return "pruning"
    if isinstance(step, Linear):
        return f"{step.dtype} {step.granularity.replace('_', ' ')}"
    if step.mode == "unique":
        return "lossless palettization"
    kind = "k-means" if step.mode == "kmeans" else "uniform palettization"
    pairs = f" of vectors of {step.cluster_dim}" if step.cluster_dim > 1 else ""
    scaled = " scaled by channel" if step.enable_per_channel_scale else ""
    return f"{step.nbits}-bit {kind}{pairs}{scaled}"
