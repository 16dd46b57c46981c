"""Draws a package's inputs, one call after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pytest_ane.manifest import Input
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import Feature
from pytest_ane.probes.domains import FLOATS, may_be_left_out
from pytest_ane.probes.inputs import COVERED, POSITIONAL, Call, Domain, Shape, draw, position_axis
from pytest_ane.probes.seeded import KINDS

_BYTE = 255
SAMPLER = 2
"""Version of what is drawn for a package's inputs, raised when the same table gives others."""


class Sampler:
    """Draws one call's arrays after another; ids go on where the call before left off.

    Attributes:
        features: the package's inputs.
        subject: the package or shard, for messages.
        domains: what each input is drawn from, by name.
    """

    def __init__(
        self, features: tuple[Feature, ...], subject: Path | str, domains: Mapping[str, Domain]
    ) -> None:
        self.features = features
        self.subject = subject
        self.domains = domains
        self._drawn: Counter[str] = Counter()

    def call(
        self,
        shapes: Mapping[str, Shape],
        kind: str,
        probe: tuple[object, ...],
        number: int,
        start: int = 0,
        call: int = 0,
    ) -> dict[str, Array]:
        """The inputs of one call by name: float32, int32, or bytes of an image.

        A number that is optional is left out of every second probe, the first one's too.

        Args:
            shapes: of the inputs, by name.
            kind: of floats of which nobody says more, `gaussian` or `unit-norm`.
            probe: parts of the seed, the manifest's first.
            number: the probe's number among those of the same parts.
            start: position of the call's first row.
            call: which of its sequence, for a later one may begin where an earlier one did.

        Raises:
            ProgramError: an input's options do not fit its shape, or a file cannot be used.
        """
        features = [f for f in self.features if not (number % 2 == 0 and may_be_left_out(f))]
        return {f.name: self._input(f, shapes[f.name], kind, probe, number, start, call)
                for f in features}  # fmt: skip

    def positions(self, shapes: Mapping[str, Shape]) -> int:
        """Positions T of a call, by the first input of a kind that depends on them; else 1.

        Raises:
            ProgramError: as `call`.
        """
        for feature in self.features:
            spec = self.domains[feature.name].input
            if spec is not None and spec.kind in POSITIONAL:
                shape = shapes[feature.name]
                with self._of(feature.name):
                    axis = position_axis(spec, shape, _flexible_axis(feature))
                if axis is not None:
                    return shape[axis]
        return 1

    def rows(self, shapes: Mapping[str, Shape]) -> int:
        """Positions T of a call: along the only flexible axis, else as `positions`, else of ids.

        Raises:
            ProgramError: as `call`.
        """
        extents = {
            shapes[f.name][axis] for f in self.features if (axis := _flexible_axis(f)) is not None
        }
        if len(extents) == 1:
            return extents.pop()
        if (known := self.positions(shapes)) > 1:
            return known
        ids = (shapes[name] for name, domain in self.domains.items() if domain.count is not None)
        return max((extent for shape in ids for extent in shape[-1:]), default=1)

    def calls_left(self, shapes: Mapping[str, Shape], most: int) -> int:
        """Further calls after which each id, and each picture, was drawn.

        Inputs that need more than `most` calls do not count.
        """
        needed = [0]
        for name, domain in self.domains.items():
            if domain.input is not None and domain.input.files:
                needed.append(len(domain.input.files) - self._drawn[name])
            if domain.count is not None and domain.count <= COVERED:
                left = domain.count - self._drawn[name]
                needed.append(math.ceil(max(left, 0) / math.prod(shapes[name])))
        return max(calls for calls in needed if calls <= most)

    def _input(
        self,
        feature: Feature,
        shape: Shape,
        kind: str,
        probe: tuple[object, ...],
        number: int,
        start: int,
        turn: int,
    ) -> Array:
        name, spec = feature.name, self.domains[feature.name].input
        first = self._drawn[name]
        call = Call(probe, name, number, start, first, _flexible_axis(feature), turn)
        if spec is None:
            return KINDS[kind](call.bits, shape or (1,)).reshape(shape)
        with self._of(name):
            values = _typed(feature, spec, draw(spec, shape, call))
        if spec.kind == "ids":
            self._drawn[name] += values.size
        elif spec.files:
            self._drawn[name] += 1
        return values

    @contextmanager
    def _of(self, name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise ProgramError(f"{self.subject}: input {name!r} {error}.") from None


def _typed(feature: Feature, spec: Input, values: Array) -> Array:
    """Values in the type that a feature takes: bytes of an image, float32, or int32."""
    if feature.dtype in FLOATS:
        return values.astype(np.float32)
    # A positive value does not become 0.
    whole = np.ceil(values) if spec.kind == "positive" else np.rint(values)
    if feature.kind != "image":
        return whole.astype(np.int32)
    if whole.min() < 0 or whole.max() > _BYTE:
        raise ValueError(f"is an image, whose pixels are 0 to 255; {spec.kind} goes beyond")
    return whole.astype(np.uint8)


def _flexible_axis(feature: Feature) -> int | None:
    """An input's only flexible axis; None where none or several are flexible."""
    ranges = feature.ranges or [(min(e), max(e)) for e in zip(*feature.enumerated, strict=True)]
    axes = [axis for axis, (low, high) in enumerate(ranges) if low != high]
    return axes[0] if len(axes) == 1 else None
