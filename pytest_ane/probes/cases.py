"""Cases: a probe with the reference's outputs, in the artifact's own inputs, and what is compared.

Some outputs are no plain tensors: pictures, and the objects that a detector found. Pictures are
compared as their pixels, which is what a caller gets.

A detector gives a row for each object, those of which it is most sure first. Two right ones seldom
give the same rows: a confidence that is a little lower changes the order, and one at the threshold
the number. So each object of the reference is matched with the one of the artifact that overlaps it
most, as benchmarks of detectors do, and what has no partner is compared with zeros.

On noise there are no objects, and near ties decide which boxes are left. There the numbers that
enter the suppression are compared in their place, where the backend shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ane.backends import Runner
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.interface import is_color, to_pixels
from pytest_ane.mlprogram.executor.ops.sorting import overlaps
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline
from pytest_ane.models.families import Inputs, Port, Routes
from pytest_ane.probes.inputs import Domain
from pytest_ane.probes.seeded import gaussian, generator


class Detection(NamedTuple):
    """Names of confidences `[K, C]` and boxes `[K, 4]`: of the outputs, and before suppression."""

    outputs: tuple[str, str]
    raw: tuple[str, str]


Calls: TypeAlias = tuple[tuple[int, int], ...]
"""For each call on one state the position of its first row, and T. Rows follow call by call."""
Rows: TypeAlias = Mapping[str, FloatArray]
"""`[positions, channels]` by output name."""
_OVERLAP = 0.5
"""Least intersection over union of a match, that of PASCAL VOC (Everingham et al., 2010)."""
_GREY = 127.5
"""Middle of 0 to 255: a cosine of numbers that are all positive hides their differences."""


@dataclass(frozen=True)
class Kinds:
    """Which outputs of a model are no plain tensors: pictures by name, and detected objects."""

    images: Mapping[str, Feature] = field(default_factory=dict)
    detections: tuple[Detection, ...] = ()


def output_kinds(model: MLModel | Pipeline) -> Kinds:
    """Which outputs of a package are pictures or detected objects."""
    return Kinds(
        {feature.name: feature for feature in model.outputs if feature.kind == "image"},
        tuple(
            Detection(*((part.confidence[end], part.coordinates[end]) for end in (1, 0)))
            for part in (model.suppressions if isinstance(model, Pipeline) else ())
        ),
    )


def pixel_row(feature: Feature, output: Any) -> FloatArray:
    """A picture as one row of its pixels less 127.5, float32; half-precision greys as they are.

    `output` is a tensor `[1, C, H, W]`, an array or a PIL image; `ExecutionError` for other
    channels.
    """
    if hasattr(output, "mode"):
        output = np.asarray(output.convert("RGB") if is_color(feature) else output)
    pixels = output
    if output.ndim == 4:
        if not np.isfinite(output).all():  # No pixel is; the gate is to see it.
            return np.asarray(output, np.float32).reshape(1, -1)
        try:
            pixels = to_pixels(feature, output)
        except ValueError as error:
            raise ExecutionError(f"output {feature.name!r} has {error}.") from None
    middle = 0.0 if feature.dtype is DType.FP16 else _GREY
    row: FloatArray = np.asarray(pixels, np.float32).reshape(1, -1) - np.float32(middle)
    return row


def aligned(
    actual: Rows, expected: Rows, detections: Iterable[Detection], *, pictures: bool = True
) -> tuple[Rows, Rows]:
    """Rows of both sides in which all detected objects have become one row.

    Confidences are compared as they are, boxes multiplied by the greatest confidence of their row:
    a box that hardly counts on one side, and is below the threshold on the other, decides little.
    Without `pictures` no objects are expected: they are left out where both sides have the numbers
    before suppression.
    """
    left, right = dict(actual), dict(expected)
    for (confidence, boxes), raw in detections:
        if not pictures and {*raw} <= left.keys() & right.keys():
            for side in (left, right):
                del side[confidence], side[boxes]
        elif {confidence, boxes} <= left.keys() & right.keys():
            matches = _matches((left[confidence], left[boxes]), (right[confidence], right[boxes]))
            for side, order in zip((left, right), zip(*matches, strict=True), strict=True):
                rows = _taken(side[confidence], order)
                sure = rows.max(axis=1, initial=0.0, keepdims=True)
                side[boxes] = (_taken(side[boxes], order) * sure).reshape(1, -1)
                side[confidence] = rows.reshape(1, -1)
    return left, right


def _matches(
    actual: tuple[FloatArray, FloatArray], expected: tuple[FloatArray, FloatArray]
) -> list[tuple[int, int]]:
    """Rows of both sides that belong together, -1 for none; at least one pair."""
    (scores, boxes), (wanted, places) = actual, expected
    free = {*range(len(boxes))}
    pairs = []
    for row in np.argsort(-wanted.max(axis=1, initial=0.0), kind="stable").tolist():
        kind = wanted[row].argmax()
        rivals = [i for i in sorted(free) if scores[i].argmax() == kind]
        shared = overlaps(places[row], boxes[rivals])
        best = int(shared.argmax()) if rivals else -1
        match = rivals[best] if best >= 0 and shared[best] >= _OVERLAP else -1
        free.discard(match)
        pairs.append((match, row))
    return [*pairs, *((i, -1) for i in sorted(free))] or [(-1, -1)]


def _taken(rows: FloatArray, order: tuple[int, ...]) -> FloatArray:
    padded: FloatArray = np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)])
    return padded[list(order)]


TURNS = (0, 1, 2, 1)
"""Where each call of a seeded sequence begins, in calls, on the states of a package or a builder's
shard: what one writes is read in those after it, and the last writes over what the second wrote."""
_LABEL = 16
"""Numbers that stand for a label: the cosine of two has a deviation of 1/4, and is far from 1."""
Float = TypeVar("Float", bound=np.floating[Any])


@dataclass(frozen=True, eq=False)
class Case:
    """One probe of one shard.

    Attributes:
        calls: the artifact's inputs by name, for one call or several on one state.
        rows: turns a call's outputs into `[positions, channels]` arrays by output name.
        expected: the reference's rows; empty where there is no reference.
        length: positions T that enter, and are compared unless the output is one row for all.
        input_max: largest magnitude of the hidden state or the floating-point inputs.
        start: position in the prompt that the first row comes from.
        residual: by output name, the part of `expected` that is the residual path alone, if known.
        routed: experts active in the reference at each position, for a routed shard; else empty.
        residual_unknown: whether the component along an input of an output's shape is to be
            projected out, for want of a known residual path.
        kept: rows of all calls that are compared, where others are overwritten; None for all.
        left_out, undecided: channels, and rows, that are not compared.
        states: by name, before the first call; zero where they are not named.
        recurrent, restored: states that a call which goes back finds as before an earlier one, and
            by each such call that earlier one.
        carried: by state, whether it changes the reference's last outputs; empty if nobody asked.
        spans: of each call the position of its first row and T; empty where nobody knows.
        slots: how many positions a state holds, by name, where that is known.
        domains: what a package's inputs were drawn from, by name.
        detections: outputs that are objects which a detector finds.
        causal: whether position 0 sees itself alone, so that its errors are apart.
        same_module: whether one hand wrote the reference and what the artifact was converted from.
    """

    kind: str
    name: str
    calls: tuple[Inputs, ...]
    rows: Callable[[Arrays], Rows]
    expected: Rows
    length: int
    input_max: float
    start: int = 0
    residual: Rows = field(default_factory=dict)
    routed: Routes = ()
    residual_unknown: bool = False
    kept: tuple[int, ...] | None = None
    left_out: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    states: Arrays = field(default_factory=dict)
    recurrent: tuple[str, ...] = ()
    restored: Mapping[int, int] = field(default_factory=dict)
    carried: Mapping[str, bool] = field(default_factory=dict)
    spans: Calls = ()
    slots: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    detections: tuple[Detection, ...] = ()
    causal: bool = True
    same_module: bool = False

    def paired(self, actual: Rows) -> tuple[Rows, Rows]:
        """An artifact's rows and the reference's, of which detected objects are matched."""
        return aligned(actual, self.expected, self.detections, pictures=self.pictures)

    @property
    def pictures(self) -> bool:
        """Whether detectors may find objects: not in gradients and noise."""
        drawn = [domain.input for domain in self.domains.values()]
        return not drawn or any(each is not None and each.pictures for each in drawn)

    def joined(self, parts: Sequence[Rows]) -> Rows:
        """The rows of all calls as one sequence, without those that were overwritten."""
        kept = slice(None) if self.kept is None else list(self.kept)
        return {name: array[kept] for name, array in _joined(parts).items()}

    def compared(self, rows: npt.NDArray[Float]) -> npt.NDArray[Float]:
        """Rows `[T, C]` with zeros in the channels, and the rows, that are left out."""
        if not self.left_out and not self.undecided:
            return rows
        rest: npt.NDArray[Float] = rows.copy()
        rest[:, list(self.left_out)] = 0
        rest[list(self.undecided)] = 0
        return rest


class CaseState:
    """The states that a case's calls are made on, one after another."""

    def __init__(self, runner: Runner, case: Case) -> None:
        self._runner, self._case, self._state = runner, case, runner.make_state()
        self._marks: dict[int, Arrays] = {}
        if case.states:
            runner.write_states(self._state, case.states)

    def before(self, turn: int) -> Any:
        """As they are to be before a call: one that goes back finds recurrent states restored."""
        restored = self._case.restored
        if turn in restored:
            self._runner.write_states(self._state, self._marks[restored[turn]])
        if turn in restored.values():
            self._marks[turn] = self._runner.read_states(self._state, self._case.recurrent)
        return self._state


def package_case(
    kind: str,
    name: str,
    calls: Sequence[Inputs],
    outputs: Sequence[Arrays],
    ports: Iterable[Port] = (),
    *,
    length: int | None = None,
    kinds: Kinds = Kinds(),
    **known: Any,
) -> Case:
    """A case in a package's own inputs and outputs.

    `outputs` are the reference's of each call, none where there is no reference. Those of `ports`
    have positions along their flexible axis, detected objects a row each, any other is one row.
    `length` is that of the longest output by default; `known` are other attributes of a `Case`.
    """
    declared = {port.name: port for port in ports}
    objects = {name for each in kinds.detections for name in each.outputs}

    def row(key: str, output: Any) -> FloatArray:
        if key in kinds.images:
            return pixel_row(kinds.images[key], output)
        return as_array(output) if key in objects else port_rows(output, declared.get(key))

    def rows(arrays: Arrays) -> Rows:
        return {key: row(key, output) for key, output in arrays.items()}

    expected = _joined([rows(each) for each in outputs])
    lengths = [len(array) for key, array in expected.items() if key not in objects]
    floats = (x for call in calls for x in call.values() if np.issubdtype(x.dtype, np.floating))
    return Case(
        kind, name, tuple(calls), rows, expected,
        length=max(lengths, default=1) if length is None else length,
        input_max=max((float(np.abs(x).max(initial=0.0)) for x in floats), default=0.0),
        residual_unknown=True, detections=kinds.detections, **known,
    )  # fmt: skip


def _joined(parts: Sequence[Rows]) -> Rows:
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def as_array(output: Any) -> Array:
    """An output as numbers: a classifier's probabilities by label, a PIL image's pixels.

    A label, a text or an integer, becomes 16 numbers along a last axis of their own: a direction,
    so that equal labels have the cosine 1 and others one near 0.
    """
    if isinstance(output, Mapping):
        return np.array([output[key] for key in sorted(output, key=str)], np.float32)
    if (mode := getattr(output, "mode", None)) is not None:
        return np.asarray(output.convert("RGB") if mode == "RGBA" else output, np.float32)
    array = np.asarray(output)
    if array.dtype.kind == "f":
        return array
    labels, at = np.unique(array, return_inverse=True)
    directions = [gaussian(generator("label", str(label)), (_LABEL,)) for label in labels]
    return np.stack(directions)[at.reshape(array.shape)]


def port_rows(output: Any, port: Port | None) -> FloatArray:
    """An output as float32 `[T, C]` where one axis is known to be flexible, else `[1, size]`."""
    array = np.asarray(as_array(output), np.float32)
    axis = None if port is None else flexible_axis(port)
    if axis is None or port is None or np.ndim(output) != len(port.shape):
        return array.reshape(1, -1)
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def flexible_axis(port: Port) -> int | None:
    """The one axis of length T; None where there is none or several."""
    axes = [i for i, size in enumerate(port.shape) if size == "T"]
    return axes[0] if len(axes) == 1 else None


def with_prefix(tensors: Arrays, prefix: str) -> dict[str, Array]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
