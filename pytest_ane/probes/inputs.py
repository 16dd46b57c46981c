"""The kinds of inputs that `[models.NAME.shard.ID.inputs.INPUT]` names, as arrays of one call.

Each is a function of random words (`pytest_ane.probes.seeded.generator`), a shape and its options,
and has the same values in every run. Kinds that depend on the position take `start`, the position
of the call's first row, so that a sequence of calls on one state can be made.

Two axes matter to these: that of the call's positions T, and the kind's own (keys of a mask, slots
of a one-hot row, channels of RoPE, experts). `kind_axes` tells which they are where nobody says it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError, safe_open

from pytest_ane.manifest.inputs import Input, InputKind
from pytest_ane.mlprogram.arrays import Array, DoubleArray, FloatArray
from pytest_ane.mlprogram.executor.interface import open_picture
from pytest_ane.probes.seeded import generator, normals, single, words

Shape = tuple[int, ...]
COVERED = 1 << 16
"""Most ids that are all drawn before one is drawn again."""
POSITIONAL: tuple[InputKind, ...] = (
    "causal-mask", "one-hot", "positions", "rope-cos", "rope-sin", "routing",
)  # fmt: skip
"""Kinds that depend on the position."""
_LEAST = 2.0**-10
"""Least of `positive`, in deviations: fp16 holds it to 11 bits."""
_STEPS = 255
"""Of an image, between its least and its greatest value."""
_IDLE = 4
"""Positions of `routing` of which one chooses no expert."""


@dataclass(frozen=True)
class Domain:
    """What an input's values are drawn from, who says so, and that as a sentence for people.

    Without an `input`, floats of the probe's kind.
    """

    source: Literal["manifest", "derived", "default"]
    input: Input | None
    sentence: str

    @property
    def kind(self) -> str:
        """The kind of input, `probe` for floats of the probe's kind."""
        return "probe" if self.input is None else self.input.kind

    @property
    def count(self) -> int | None:
        """How many ids there are; None of any other kind."""
        return None if self.input is None else self.input.count


@dataclass(frozen=True)
class Call:
    """Which call of which probe an input is drawn for.

    Attributes:
        probe: the manifest's seed, and what else names a kind of probes.
        number: the probe's; images alternate by it, and so does what `routing` leaves out.
        start: position of the call's first row.
        first: how many ids, or pictures, earlier calls took.
        flexible: the input's only flexible axis; None for none or several.
        turn: its number in a sequence of calls on one state.
    """

    probe: tuple[object, ...]
    name: str
    number: int = 0
    start: int = 0
    first: int = 0
    flexible: int | None = None
    turn: int = 0

    @property
    def bits(self) -> np.random.PCG64:
        """Random words of this call alone."""
        return generator(*self.probe, self.name, self.number, *filter(None, [self.turn]))

    @property
    def order(self) -> np.random.PCG64:
        """Random words that are the same for all calls."""
        return generator(self.probe[0], self.name, "ids")


def draw(spec: Input, shape: Shape, call: Call) -> FloatArray | Array:
    """One input of one call: float32, `ids` and `positions` int64.

    `ValueError`, a part of a sentence that follows the input's name, where the options do not fit
    the shape, or a file cannot be used.
    """
    bits, (low, high) = call.bits, spec.bounds
    match spec.kind:
        case "normal":
            return single(spec.deviation * normals(bits, shape))
        case "uniform":
            return single(low + (high - low) * _shares(bits, shape))
        case "positive":
            sizes = np.maximum(np.abs(normals(bits, shape)), _LEAST)
            return single(spec.deviation * sizes)
        case "ids":
            assert spec.count is not None
            return ids(call.order, bits, shape, spec.count, call.first)
        case "image" if spec.pictures:
            return picture(spec.pictures[call.first % len(spec.pictures)], shape, low, high)
        case "image":
            return image(bits, shape, low, high, noise=call.number % 2 == 1)
        case "constant":
            assert spec.file is not None
            return constant(spec.file, shape)
        case "positions":
            axis = position_axis(spec, shape, call.flexible)
            values: Array = np.full(shape, call.start, np.int64)
            if axis is not None:
                others = [i for i in range(len(shape)) if i != axis]
                values += np.expand_dims(np.arange(shape[axis]), others)
            return values
    axes = kind_axes(shape, spec.axis, spec.position_axis, call.flexible)
    # Positions `[T, 1]`, and indices along the kind's own axis `[1, N]`.
    count = 1 if axes.positions is None else shape[axes.positions]
    rows, own = call.start + np.arange(count)[:, None], np.arange(shape[axes.own])[None]
    match spec.kind:
        case "causal-mask":
            return _placed(
                np.where(_seen(rows, own, shape[axes.own], spec), 0.0, spec.masked), shape, axes
            )
        case "one-hot":
            # For each position a 1 at its slot, position mod slots.
            return _placed((rows % shape[axes.own] == own).astype(np.float64), shape, axes)
        case "routing":
            return routing(spec, bits, shape, axes, call.start + call.number)
        case "rope-cos" | "rope-sin":
            angles = rope_angles(spec, shape, axes, rows, own)
            return single(np.cos(angles) if spec.kind == "rope-cos" else np.sin(angles))


class Axes(NamedTuple):
    """Which axes mean something: that of the call's positions, if any, and the kind's own."""

    positions: int | None
    own: int


def kind_axes(
    shape: Shape, own: int | None = None, positions: int | None = None, flexible: int | None = None
) -> Axes:
    """The axes of an input, those that are None derived from its shape; `ValueError` without any.

    T is along the flexible axis, if another axis is longer than 1. The kind's own axis is the last
    one longer than 1 that is left, or else the last one. Without a flexible axis, T is along the
    last axis longer than 1 that is then left; where none is, there is one position.
    """
    own, positions = (_axis(shape, axis) for axis in (own, positions))
    taken = {own, positions}
    if positions is None and flexible not in (None, own):
        others = [axis for axis in _long(shape) if axis != flexible]
        positions = flexible if others or own is not None else None
        taken.add(positions)
    if own is None:
        free = [axis for axis in range(len(shape)) if axis not in taken]
        if not free:
            raise ValueError(f"has the shape {list(shape)}, whose only axis is that of positions")
        own = ([axis for axis in free if shape[axis] > 1] or free)[-1]
    if positions is None:
        left = [axis for axis in _long(shape) if axis != own]
        positions = left[-1] if left else None
    if own == positions:
        raise ValueError(f"has the shape {list(shape)}; axis {own} cannot be both of its axes")
    return Axes(positions, own)


def position_axis(spec: Input, shape: Shape, flexible: int | None = None) -> int | None:
    """The axis of the positions of an input; None where there is one position.

    Of `positions`, which have no other axis, the flexible one, or the last one longer than 1.
    """
    if spec.kind != "positions":
        return kind_axes(shape, spec.axis, spec.position_axis, flexible).positions
    if spec.position_axis is not None:
        return _axis(shape, spec.position_axis)
    return flexible if flexible is not None else next(reversed(_long(shape)), None)


def _long(shape: Shape) -> list[int]:
    return [axis for axis, extent in enumerate(shape) if extent > 1]


def _axis(shape: Shape, axis: int | None) -> int | None:
    if axis is None:
        return None
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"has the shape {list(shape)}, which has no axis {axis}")
    return axis % len(shape)


def ids(
    order: np.random.PCG64, bits: np.random.PCG64, shape: Shape, count: int, first: int = 0
) -> Array:
    """Ids from 0 below `count`: each once in a random `order`, then any.

    Where there are more than 65,536, the largest comes first and 0 next, then any. Earlier calls
    took the `first` ids; `bits` are this call's own.
    """
    size = math.prod(shape)
    values = (words(bits, (size,)) % np.uint64(count)).astype(np.int64)
    every = np.array([count - 1, 0])
    if count <= COVERED:
        every = np.argsort(order.random_raw(count), kind="stable")
    fresh = every[first : first + size]
    values[: len(fresh)] = fresh
    drawn: Array = values.reshape(shape)
    return drawn


def _seen(queries: Array, keys: Array, slots: int, spec: Input) -> Array:
    """Whether a position sees a key: itself and those before it, with a window the nearest of them.

    Slots are filled round: beyond S keys, slot k holds the latest position p with p mod S = k.
    """
    age = (queries - keys) % slots
    seen: Array = age <= queries
    return seen if spec.window is None else seen & (age < spec.window)


def rope_angles(spec: Input, shape: Shape, axes: Axes, rows: Array, channel: Array) -> DoubleArray:
    """Angles p theta^(-2i / head) of position p in channel pair i (Su et al., 2104.09864)."""
    channels = shape[axes.own]
    head = channels if spec.head is None else spec.head
    if channels not in (head, head // 2) or head % 2:
        raise ValueError(
            f"has the shape {list(shape)}: its channels, axis {axes.own}, are {channels}, and RoPE "
            f"of head = {head} has {head} or {head // 2}"
        )
    whole = spec.interleaved and channels == head
    pair = channel // 2 if whole else channel % (head // 2)
    return _spread(rows * spec.theta ** (-2.0 * pair / head), shape, axes)


def routing(spec: Input, bits: np.random.PCG64, shape: Shape, axes: Axes, phase: int) -> FloatArray:
    """Weights of the active experts at each position, which sum to 1; of the others 0.

    Every fourth position chooses none: those for which position + `phase` is 1 mod 4.
    """
    experts, active = shape[axes.own], spec.active or 0
    if active > experts:
        raise ValueError(f"has {experts} experts along axis {axes.own}, and active = {active}")
    count = 1 if axes.positions is None else shape[axes.positions]
    chosen = np.argsort(words(bits, (count, experts)), axis=1, kind="stable") < active
    weights = np.where(chosen, 1.0 + single(_shares(bits, (count, experts))), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    weights[(np.arange(count) + phase) % _IDLE == 1] = 0.0
    return _placed(weights, shape, axes)


def image(
    bits: np.random.PCG64, shape: Shape, low: float = 0.0, high: float = 255.0, *, noise: bool
) -> FloatArray:
    """A gradient or noise, in 256 steps from `low` to `high`.

    A gradient goes from corner to corner of each channel, between bytes at the four corners. Rows
    and columns are the last two axes, or the two before where at most 4 channels come last.
    """
    if noise:
        steps = (words(bits, shape) >> np.uint64(56)).astype(np.float64)
        return single(low + (high - low) * steps / _STEPS)
    last = _channels_last(shape)
    planes = (*shape[:-3], shape[-1], *shape[-3:-1]) if last else shape
    height, width = (1, 1, *planes)[-2:]
    corners = (words(bits, (math.prod(planes[:-2]), 4)) >> np.uint64(56)).astype(np.float64)
    corners[:, 0], corners[:, 3] = 0, _STEPS
    y = np.linspace(0, 1, height)[:, None]
    x = np.linspace(0, 1, width)
    parts = ((1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x)
    steps = np.rint(sum(c[:, None, None] * part for c, part in zip(corners.T, parts, strict=True)))
    steps = steps.reshape(planes)
    steps = np.ascontiguousarray(np.moveaxis(steps, -3, -1)) if last else steps
    return single(low + (high - low) * steps / _STEPS)


def picture(file: str, shape: Shape, low: float = 0.0, high: float = 255.0) -> FloatArray:
    """A picture in an input's shape and colours, its 256 steps from `low` to `high`.

    It is resized by Pillow's bilinear filter, whatever its own proportions are. Axes are those of
    `image`; any before the channels repeat it. `ValueError` where it cannot be read.
    """
    last = _channels_last(shape)
    height, width = (1, 1, *(shape[-3:-1] if last else shape))[-2:]
    channels = shape[-1] if last else (1, *shape[:-2])[-1]
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if channels not in modes:
        raise ValueError(f"has the shape {list(shape)}, and pictures have 1, 3 or 4 channels")
    try:
        opened = open_picture(Path(file))
    except ValueError as error:
        raise ValueError(f"is the picture {file}, which {error}") from None
    resized = opened.convert(modes[channels]).resize((width, height), 2)  # 2 is bilinear.
    steps = np.asarray(resized, np.float64).reshape(height, width, channels)
    planes = steps if last else np.moveaxis(steps, -1, 0)
    planes = np.broadcast_to(planes.reshape(planes.shape[-len(shape) :]), shape)
    return single(low + (high - low) * planes / _STEPS)


def _channels_last(shape: Shape) -> bool:
    return len(shape) > 2 and shape[-1] <= 4 < min(shape[-3:-1])


def constant(file: str, shape: Shape) -> Array:
    """An array of `FILE.npy`, `FILE.npz#NAME` or `FILE.safetensors#NAME`.

    `ValueError` where there is none, or it has another shape or values that are not finite.
    """
    path, _, name = file.partition("#")
    try:
        array = _stored(Path(path), name)
    except KeyError:
        raise ValueError(f"is the constant {file}, and the file has no array {name!r}") from None
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, SafetensorError) as error:
        raise ValueError(f"is the constant {file}, which cannot be read ({error})") from None
    if array.shape != shape:
        raise ValueError(
            f"is the constant {file}, whose shape is {list(array.shape)}; it takes {list(shape)}"
        )
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        raise ValueError(f"is the constant {file}, which holds something else than finite numbers")
    return array


def _stored(path: Path, name: str) -> Array:
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as tensors:
            if name not in tensors.keys():  # noqa: SIM118
                raise KeyError(name)
            tensor: Array = tensors.get_tensor(name)
            return tensor
    with path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        array: Array = loaded[name] if name else loaded
        return array


def _shares(bits: np.random.PCG64, shape: Shape) -> DoubleArray:
    shares: DoubleArray = (words(bits, shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return shares


def _spread(rows: DoubleArray, shape: Shape, axes: Axes) -> DoubleArray:
    """Rows `[T, N]` along their axes of a shape, and the same along all others."""
    if axes.positions is not None and axes.positions > axes.own:
        rows = rows.T
    extents = [shape[i] if i in axes else 1 for i in range(len(shape))]
    return np.broadcast_to(rows.reshape(extents), shape)


def _placed(rows: DoubleArray, shape: Shape, axes: Axes) -> FloatArray:
    return single(_spread(rows, shape, axes))
