"""What the inputs of a user's own package are drawn from: `[models.NAME.shard.ID.inputs.INPUT]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, JsonValue, Strict, model_validator

from pytest_ane.manifest.base import RELATIVE, Form, OrText, Record, kebab, listed, misplaced
from pytest_ane.mlprogram.digests import content_digest

InputKind: TypeAlias = Literal[
    "normal", "uniform", "positive", "ids", "causal-mask", "one-hot", "positions", "rope-cos",
    "rope-sin", "routing", "image", "constant",
]  # fmt: skip

_AXES = ("axis", "position_axis")
OPTIONS: dict[InputKind, tuple[str, ...]] = {
    "normal": ("deviation",),
    "uniform": ("range",),
    "positive": ("deviation",),
    "ids": ("count", "sample"),
    "causal-mask": ("masked", "window", *_AXES),
    "one-hot": _AXES,
    "positions": ("position_axis",),
    "rope-cos": ("theta", "head", "interleaved", *_AXES),
    "rope-sin": ("theta", "head", "interleaved", *_AXES),
    "routing": ("active", *_AXES),
    "image": ("range", "files"),
    "constant": ("files",),
}
"""The options that each kind has."""
_NEEDED: dict[InputKind, str] = {"ids": "count", "routing": "active", "constant": "files"}
_ARRAY = r".*\.npy|.*\.(npz|safetensors)#.+"


class Input(Record):
    """What an input of an own package is drawn from; without a table, what its program implies."""

    kind: InputKind
    """`normal` values; `uniform` ones; `positive` ones, as magnitudes are; `ids` from 0 below
    `count`; `causal-mask`, 0 for keys that a position sees and `masked` for others; `one-hot`, for
    each position a 1 at its slot, such as a cache's write mask; `positions`, counted from the
    call's first; `rope-cos` and `rope-sin` of RoPE's angles; `routing`, weights of experts that sum
    to 1 where any is chosen; `image`, gradients and noise in steps of 1/255, or pictures;
    `constant`, a file."""
    deviation: Annotated[float, Field(gt=0)] = 1.0
    """Of `normal`: the standard deviation; of `positive`: that of the normal values whose
    magnitudes are taken."""
    range: Annotated[tuple[float, float], Strict(False)] | None = None
    """Of `uniform` and `image`: the least and the greatest value; absent: 0 and 1, or an image's
    255."""
    count: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    """Of `ids`: how many there are, such as a table's rows; needed."""
    sample: bool = False
    """Of `ids`: whether a sample of them is enough, those that the probes draw; else a shard whose
    probes do not draw each of them is unproven."""
    masked: Annotated[float, Field(lt=0)] = -10_000.0
    """Of `causal-mask`: the number added to the scores of keys that are not seen."""
    window: Annotated[int, Field(ge=1)] | None = None
    """Of `causal-mask`: how many keys a position sees at most, itself among them; absent: all."""
    theta: Annotated[float, Field(gt=0)] = 10_000.0
    """Of `rope-cos` and `rope-sin`: the base of the frequencies."""
    head: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    """Of `rope-cos` and `rope-sin`: channels that are rotated; absent: the extent of `axis`. An
    axis of half as many holds each angle once."""
    interleaved: bool = False
    """Of `rope-cos` and `rope-sin`: whether neighbouring channels share an angle; else channel i
    and i + head / 2 do."""
    active: Annotated[int, Field(ge=1)] | None = None
    """Of `routing`: experts chosen at a position; needed. Every fourth position chooses none."""
    files: Annotated[
        tuple[Annotated[str, Form(r".*\S.*", "must be the name of a file"), RELATIVE], ...],
        Strict(False),
        BeforeValidator(listed),
        Field(max_length=64),
        OrText(),
    ] = ()
    """Of `constant`: an array, `FILE.npy`, `FILE.npz#NAME` or `FILE.safetensors#NAME`, relative to
    the manifest; needed. Of `image`: pictures that are taken in turn in place of gradients and
    noise, each of them once at least; resized to the input's size, and to `range` where the input
    is a tensor."""
    axis: int | None = None
    """The kind's own axis: keys of a mask, slots of a one-hot row, channels of RoPE, experts;
    negative ones count from the end. Absent: the last axis longer than 1 that is not
    `position-axis`."""
    position_axis: int | None = None
    """The axis of the call's positions T. Absent: the only flexible axis, if there is one and
    another is longer than 1; else the last axis longer than 1 that is not `axis`; else there is
    one position."""

    @model_validator(mode="after")
    def _options_fit(self) -> Input:
        needed = _NEEDED.get(self.kind)
        if needed and not getattr(self, needed):
            raise ValueError(f"{needed!r} is missing; kind = {self.kind!r} needs it")
        for name in sorted(self.model_fields_set - {"kind", *OPTIONS[self.kind]}):
            kinds = " or ".join(repr(kind) for kind in OPTIONS if name in OPTIONS[kind])
            raise misplaced((kebab(name),), f"belongs to kind = {kinds}, not {self.kind!r}")
        low, high = self.bounds
        if low >= high:
            raise misplaced(("range",), "must be the least value, then a greater one")
        array = len(self.files) == 1 and re.fullmatch(_ARRAY, self.files[0])
        if self.kind == "constant" and not array:
            raise misplaced(("files",), "must be FILE.npy, FILE.npz#NAME or FILE.safetensors#NAME")
        if self.axis is not None and self.axis == self.position_axis:
            raise ValueError("axis and position-axis are the same; give two axes")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value of `uniform` and `image`."""
        return self.range or (0.0, 255.0 if self.kind == "image" else 1.0)

    @property
    def pictures(self) -> tuple[str, ...]:
        """The files of `image`."""
        return self.files if self.kind == "image" else ()

    @property
    def file(self) -> str | None:
        """The array of `constant`."""
        return self.files[0] if self.kind == "constant" else None

    @property
    def question(self) -> dict[str, JsonValue]:
        """What its values depend on, as JSON: its options, and files' bytes, not their names."""
        options = ("kind", *OPTIONS[self.kind])
        asked: dict[str, JsonValue] = self.model_dump(mode="json", include=set(options))
        if asked.pop("files", None):
            parts = [file.partition("#") for file in self.files]
            asked["files"] = [[content_digest(Path(path)), name] for path, _, name in parts]
        return asked


def questions(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """What the values of all inputs depend on, by name, as JSON."""
    return {name: inputs[name].question for name in sorted(inputs)}
