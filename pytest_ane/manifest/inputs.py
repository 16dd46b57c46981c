"""What the inputs of a user's own package are drawn from: `[models.NAME.inputs.INPUT]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, Strict, model_validator

from pytest_ane.manifest.base import Form, Record, kebab, misplaced
from pytest_ane.mlprogram.digests import file_digest

InputKind: TypeAlias = Literal[
    "normal", "uniform", "positive", "ids", "causal-mask", "one-hot", "positions", "rope-cos",
    "rope-sin", "routing", "image", "constant",
]  # fmt: skip

_AXES = ("axis", "position_axis")
OPTIONS: dict[InputKind, tuple[str, ...]] = {
    "normal": ("mean", "deviation"),
    "uniform": ("low", "high"),
    "positive": ("deviation",),
    "ids": ("count", "sample"),
    "causal-mask": ("masked", "window", *_AXES),
    "one-hot": _AXES,
    "positions": ("position_axis",),
    "rope-cos": ("theta", "head", "interleaved", *_AXES),
    "rope-sin": ("theta", "head", "interleaved", *_AXES),
    "routing": ("active", *_AXES),
    "image": ("low", "high", "files"),
    "constant": ("file",),
}
"""The options that each kind has."""
_NEEDED: dict[InputKind, str] = {"ids": "count", "routing": "active", "constant": "file"}
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
    mean: float = 0.0
    """Of `normal`: the mean."""
    deviation: Annotated[float, Field(gt=0)] = 1.0
    """Of `normal`: the standard deviation; of `positive`: that of the normal values whose
    magnitudes are taken."""
    low: float | None = None
    """Of `uniform` and `image`: the least value; absent: 0."""
    high: float | None = None
    """Of `uniform` and `image`: the greatest value; absent: 1, or an image's 255."""
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
    file: Annotated[
        str, Form(_ARRAY, "must be FILE.npy, FILE.npz#NAME or FILE.safetensors#NAME")
    ] | (None) = None
    """Of `constant`: an array, relative to the manifest; needed."""
    files: Annotated[
        tuple[Annotated[str, Form(r".*\S.*", "must be the name of a picture")], ...],
        Strict(False),
        Field(max_length=64),
    ] = ()
    """Of `image`: pictures, relative to the manifest, that are taken in turn in place of gradients
    and noise, each of them once at least; resized to the input's size, and from `low` to `high`
    where the input is a tensor."""
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
        if needed and getattr(self, needed) is None:
            raise ValueError(f"{needed!r} is missing; kind = {self.kind!r} needs it")
        for name in sorted(self.model_fields_set - {"kind", *OPTIONS[self.kind]}):
            kinds = " or ".join(repr(kind) for kind in OPTIONS if name in OPTIONS[kind])
            raise misplaced((kebab(name),), f"belongs to kind = {kinds}, not {self.kind!r}")
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"low is {low:g} and high {high:g}; low must be less than high")
        if self.axis is not None and self.axis == self.position_axis:
            raise ValueError("axis and position-axis are the same; give two axes")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value of `uniform` and `image`."""
        high = 255.0 if self.kind == "image" else 1.0
        return self.low or 0.0, high if self.high is None else self.high

    def below(self, folder: Path) -> Input:
        """The input with its files' paths from a folder on."""

        def anchored(file: str) -> str:
            return str(folder / Path(file).expanduser())

        update: dict[str, object] = {"file": anchored(self.file)} if self.file else {}
        update |= {"files": tuple(map(anchored, self.files))} if self.files else {}
        return self.model_copy(update=update) if update else self

    @property
    def question(self) -> dict[str, JsonValue]:
        """What its values depend on, as JSON: its options, and files' bytes, not their names."""
        options = ("kind", *OPTIONS[self.kind])
        asked: dict[str, JsonValue] = self.model_dump(mode="json", include=set(options))
        if self.file is not None:
            path, _, name = self.file.partition("#")
            asked["file"] = [_digest(path), name]
        # Evidence from before there were these options still answers.
        if not self.sample:
            asked.pop("sample", None)
        if asked.pop("files", None):
            asked["files"] = [_digest(file) for file in self.files]
        return asked


def _digest(file: str) -> str:
    return file_digest(Path(file)) if Path(file).is_file() else "missing"


def questions(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """What the values of all inputs depend on, by name, as JSON."""
    return {name: inputs[name].question for name in sorted(inputs)}
