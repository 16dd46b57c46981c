"""A package of the user's own in a chain: from rows of streams to its arrays, and back."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.manifest.chain import ChainEntry, channels
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.records import DType, Feature, Function, MLModel, TensorType
from pytest_ane.models.families import Branch, Layout, Wire, calls_of, trait
from pytest_ane.probes.domains import flexible_axis
from pytest_ane.probes.inputs import Call, Domain, draw

_BY_POSITION = ("causal-mask", "one-hot", "positions", "rope-cos", "rope-sin", "constant")
"""Kinds of inputs whose values follow from a call's position, or from a file."""
_INTEGERS = (DType.INT32, DType.INT64, DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class StreamPort:
    """How rows `[T, C]` of a stream stand in an array; without an `axis` it is one position."""

    feature: Feature
    axis: int | None
    channels: int

    def array(self, rows: FloatArray) -> Array:
        """Rows `[T, C]` in the port's shape and type."""
        kind = np.int32 if self.feature.dtype in _INTEGERS else np.float32
        rows = np.rint(rows) if kind is np.int32 else rows
        rest = [n for i, n in enumerate(self.feature.shape) if i != self.axis]
        if self.axis is None:
            return rows.astype(kind).reshape(self.feature.shape)
        return np.ascontiguousarray(np.moveaxis(rows.reshape(len(rows), *rest), 0, self.axis), kind)

    def rows(self, array: Array) -> FloatArray:
        """Float32 rows `[T, C]` of the port's array."""
        values = np.asarray(array, np.float32)
        if self.axis is None:
            return values.reshape(1, -1)
        return np.moveaxis(values, self.axis, 0).reshape(values.shape[self.axis], -1)


@dataclass(frozen=True)
class Entry:
    """One function of a package, and the positions that a call may have, the fewest first."""

    function: str | None
    inputs: Mapping[str, Feature]
    takes: tuple[StreamPort, ...]
    gives: tuple[StreamPort, ...]
    lengths: Sequence[int]

    @property
    def most(self) -> int:
        return self.lengths[-1]

    def longest(self, count: int) -> int:
        """The longest call of at most `count` positions; 0 where there is none."""
        at = bisect_right(self.lengths, count)
        return self.lengths[at - 1] if at else 0


class PackageLayout:
    """One package's host side in a chain; as a family's `Layout`.

    `outputs` are port, stream and mode of each, `branches` their channels. All states count as
    recurrent, for nobody tells which have a place for every position.
    """

    shifts = False

    def __init__(
        self,
        label: str,
        entry: ChainEntry,
        programs: Sequence[tuple[str | None, MLModel]],
        domains: Mapping[str, Domain],
        widths: Mapping[str, int],
        limit: int,
    ) -> None:
        """Find positions and channels of every port of a place in the chain.

        `widths` has the channels of each stream that enters, `limit` the largest T of a call.
        `ExecutionError` where a port is not there, or nothing tells what enters it.
        """
        self._label, self._chain, self._domains = label, entry, domains
        self.feedback = dict(entry.feedback)
        self._entries = sorted(
            (self._entry(function, model, widths, limit) for function, model in programs),
            key=lambda each: -each.most,
        )
        self.width = sum(port.channels for port in self._entries[0].takes)
        self.outputs = tuple(entry.outputs)
        self.branches = tuple(port.channels for port in self._entries[0].gives)
        states = {state.name for _, model in programs for state in model.states}
        self.recurrent = tuple(sorted(states))
        alone = all(each.most == 1 for each in self._entries)
        self.sees: Literal["itself", "call", "state"] = entry.sees or (
            "state" if states or self.feedback else "itself" if alone else "call"
        )

    @property
    def most(self) -> int:
        return self._entries[0].most

    def wire(self) -> Wire:
        """Its place in the chain: the first output, and further ones with their channels."""
        (gives, mode), *others = [(stream, mode) for _, stream, mode in self.outputs]
        more = zip(others, self.branches[1:], strict=True)
        return Wire(
            shard=self._chain.shard,
            takes=tuple(each for streams in self._chain.takes.values() for each in streams),
            gives=gives,
            mode=mode,
            kind=re.sub(r"\.?\d+", "", self._chain.shard),
            more=tuple(Branch(stream, mode, width) for (stream, mode), width in more),
            times=self._chain.times,
        )

    def widths(self, known: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Channels of the streams after it, by the outputs that it gives them."""
        for (_, stream, mode), count in zip(self.outputs, self.branches, strict=True):
            if (before := known.get(stream)) is not None and mode == "add" and before != count:
                raise ExecutionError(
                    f"{self._chain.shard}: {count} channels are added to the stream {stream!r}, "
                    f"which has {before}; let them be of one width."
                )
            yield stream, count + (before or 0 if mode == "append" else 0)

    def load(self, backend: Backend, package: Path) -> Runner:
        """A package, which runs the function that takes the call."""
        runners = {e.function: backend.load(package, e.function) for e in self._entries}
        one = runners[self._entries[0].function]
        return one if len(runners) == 1 else _ByLength(one, runners, self._function)

    def _function(self, inputs: Arrays) -> str | None:
        port = self._entries[0].takes[0]
        return self._fitting(len(port.rows(inputs[port.feature.name]))).function

    def call_lengths(self, count: int) -> list[int]:
        """Positions of each call of a sequence, the longest calls first."""
        calls: list[int] = []
        while (left := count - sum(calls)) > 0:
            if not (longest := max(each.longest(left) for each in self._entries)):
                least = min(each.lengths[0] for each in self._entries)
                raise ExecutionError(
                    f"{self._label}: a call takes {least} positions, and {left} of {count} are "
                    f"left; give a package, or a function, that takes {left} or 1."
                )
            calls.append(longest)
        return calls

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Arrays:
        """All inputs but those of feedback, of rows `[T, C]` at positions from `start` on."""
        entry, arrays, column = self._fitting(len(hidden)), {}, 0
        for port in entry.takes:
            rows = hidden[:, column : column + port.channels]
            arrays[port.feature.name] = port.array(rows)
            column += port.channels
        for name, feature in entry.inputs.items():
            if name not in arrays and name not in self.feedback.values():
                arrays[name] = self._positional(feature, len(hidden), start)
        return arrays

    @property
    def begin(self) -> dict[str, Array]:
        """The inputs of feedback in a sequence's first call: zeros."""
        inputs = self._entries[0].inputs
        return {name: np.zeros(inputs[name].shape, np.float32) for name in self.feedback.values()}

    def output(self, outputs: Arrays) -> FloatArray:
        """All outputs that go to streams, side by side, `[T, C]`."""
        ports = self._entries[0].gives
        count = len(ports[0].rows(outputs[ports[0].feature.name]))
        ports = self._fitting(count).gives
        return np.concatenate([port.rows(outputs[port.feature.name]) for port in ports], axis=1)

    def _fitting(self, count: int) -> Entry:
        entry = next((each for each in self._entries if each.longest(count) == count), None)
        if entry is None:
            raise ExecutionError(f"{self._label}: takes no call of {count} positions.")
        return entry

    def _positional(self, feature: Feature, count: int, start: int) -> Array:
        spec = self._domains[feature.name].input
        assert spec is not None  # `_entry` saw to it.
        flexible = flexible_axis(feature)
        shape = tuple(count if axis == flexible else n for axis, n in enumerate(feature.shape))
        call = Call((0, "chain"), feature.name, start=start, flexible=flexible)
        try:
            values = draw(spec, shape, call)
        except ValueError as error:
            raise ExecutionError(f"{self._label}: input {feature.name!r} {error}.") from None
        return values.astype(np.int32 if feature.dtype in _INTEGERS else np.float32)

    def _entry(
        self, function: str | None, model: MLModel, widths: Mapping[str, int], limit: int
    ) -> Entry:
        chain = self._chain
        inputs = {feature.name: feature for feature in model.inputs}
        outputs = {feature.name: feature for feature in model.outputs}
        self._check(inputs, (*chain.takes, *chain.feedback.values()), "input")
        self._check(outputs, (*(p for p, _, _ in chain.outputs), *chain.feedback), "output")
        takes = tuple(
            self._port(inputs[port], sum(self._width(each, widths) for each in streams))
            for port, streams in chain.takes.items()
        )
        lengths = sorted(set.intersection(*(set(_positions(port, limit)) for port in takes)))
        if not lengths:
            raise ExecutionError(
                f"{self._label}: its stream inputs share no number of positions; look at their "
                "shapes, or give position-axis."
            )
        shaped = {port: _shaped(outputs[port], model.main) for port, _, _ in chain.outputs}
        gives = tuple(self._port(each, None, lengths[-1]) for each in shaped.values())
        for name in inputs.keys() - chain.takes.keys() - set(chain.feedback.values()):
            if (spec := self._domains[name].input) is None or spec.kind not in _BY_POSITION:
                raise ExecutionError(
                    f"{self._label}: nothing in the chain enters the input {name!r}; name it in "
                    f"takes or feedback, or give it a table 'inputs.{name}' of kind "
                    f"{', '.join(_BY_POSITION)}."
                )
        return Entry(function, inputs, takes, gives, lengths)

    def _width(self, reference: str, widths: Mapping[str, int]) -> int:
        """Channels of a stream, or of the part that is taken."""
        stream, part = channels(reference)
        if part.stop is not None and not part.start < part.stop <= widths[stream]:
            raise ExecutionError(
                f"{self._label}: {reference!r} is no part of the stream {stream!r}, whose channels "
                f"are 0 to {widths[stream] - 1}."
            )
        return len(range(*part.indices(widths[stream])))

    def _check(self, features: Mapping[str, Feature], names: Sequence[str], what: str) -> None:
        for name in names:
            if name not in features:
                known = ", ".join(features) or "none"
                raise ExecutionError(
                    f"{self._label}: has no {what} {name!r}, which its place in the chain names; "
                    f"there are: {known}."
                )

    def _port(self, feature: Feature, width: int | None, length: int = 0) -> StreamPort:
        """Where positions and channels are, by the stream's channels or the call's length."""
        axis = self._chain.position_axis
        shape = feature.shape
        if axis is not None:
            axis = axis % max(len(shape), 1)
        elif (axis := flexible_axis(feature)) is None:
            axis = self._left(feature, width, length)
        size = math.prod(n for i, n in enumerate(shape) if i != axis)
        if width is not None and size != width:
            raise ExecutionError(
                f"{self._label}: the stream that enters {feature.name!r} has {width} channels, and "
                f"its shape {list(shape)} takes {size}; look at takes, or give position-axis."
            )
        return StreamPort(feature, axis, size)

    def _left(self, feature: Feature, width: int | None, length: int) -> int | None:
        """The axis of the positions of a fixed shape; None where it is one position."""
        shape, size = feature.shape, math.prod(feature.shape)
        if size == width or length == 1:
            return None
        axes = [
            axis
            for axis, extent in enumerate(shape)
            if extent > 1 and (size // extent == width if width is not None else extent == length)
        ]
        if len(axes) > 1:
            raise ExecutionError(
                f"{self._label}: the positions of {feature.name!r} {list(shape)} could be along "
                f"the axes {' and '.join(map(str, axes))}; give position-axis."
            )
        return axes[0] if axes else None


class _ByLength:
    """Functions of one package that share its states, each for calls of its own length."""

    def __init__(
        self,
        first: Runner,
        runners: Mapping[str | None, Runner],
        function: Callable[[Arrays], str | None],
    ) -> None:
        self._runners, self._function = runners, function
        self.model = first.model
        self.make_state = first.make_state
        self.read_states = first.read_states
        self.write_states = first.write_states

    def predict(self, inputs: Arrays, state: Any = None) -> dict[str, FloatArray]:
        return self._runners[self._function(inputs)].predict(inputs, state)

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[Any]
    ) -> list[dict[str, FloatArray]]:
        return [self.predict(*each) for each in zip(inputs, states, strict=True)]


def _positions(port: StreamPort, limit: int) -> Iterable[int]:
    """Positions of a call that a port takes."""
    if port.axis is None:
        return (1,)
    feature = port.feature
    if feature.enumerated:
        return (shape[port.axis] for shape in feature.enumerated)
    low, high = feature.extents[port.axis]
    if low == high:
        return (low,)
    return range(low, min(limit, limit if high is None else high) + 1)


def _shaped(feature: Feature, function: Function) -> Feature:
    """An output with its program's shape where Core ML leaves it open; unknown ones flexible."""
    if feature.shape:
        return feature
    types = {out.name: out.type for operation in function.walk() for out in operation.outputs}
    if not isinstance(kind := types.get(feature.name), TensorType):
        return feature
    ranges = tuple((1, None) if n is None else (n, n) for n in kind.shape)
    return replace(feature, shape=tuple(n or 1 for n in kind.shape), ranges=ranges)


class ShardSequence:
    """A sequence through one shard, from position 0 on, in calls of at most `limit` positions."""

    def __init__(self, runner: Runner, layout: Layout, limit: int) -> None:
        self._runner, self._layout, self._limit = runner, layout, limit
        self._state, self._start = runner.make_state(), 0
        self._feedback: dict[str, Array] = dict(trait(layout, "begin"))

    def __call__(self, hidden: FloatArray) -> FloatArray:
        parts, done = [], 0
        for count in calls_of(self._layout, len(hidden), self._limit):
            parts.append(self._call(hidden[done : done + count]))
            done += count
        return np.concatenate(parts)

    def _call(self, hidden: FloatArray) -> FloatArray:
        inputs = {**self._layout.inputs(hidden, self._start), **self._feedback}
        outputs = self._runner.predict(inputs, self._state)
        for output, name in trait(self._layout, "feedback").items():
            self._feedback[name] = outputs[output]
        self._start += len(hidden)
        return self._layout.output(outputs)[: len(hidden)]
