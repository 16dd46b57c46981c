"""The cost model's numbers, with source and certainty: `model.toml`, checked as it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_ane.gates.placement.segmenter.records import Backend
from pytest_ane.manifest.base import loads
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.text import printable

Certainty = Literal["recorded", "exact", "fitted", "one point", "assumed"]
Counts = Literal["io", "in", "bytes", "flops"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Entry(BaseModel):
    """What every entry of a data file has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1)]
    certainty: Certainty
    note: str = ""


def check_sources(entries: Iterable[Entry], sources: Mapping[str, str]) -> None:
    """Refuse a source that the file does not explain.

    Raises:
        ValueError: there is one.
    """
    cited = {source for entry in entries for source in entry.source.split(", ")}
    if unknown := cited - {*sources}:
        raise ValueError(f"unknown source {', '.join(sorted(unknown))}")


class Edge(Entry):
    """Milliseconds by backend, 0 for those left out."""

    kind: Literal["launch", "switch", "end"]
    ane: Milliseconds = 0.0
    bnns: Milliseconds = 0.0
    classic: Milliseconds = 0.0
    gpu: Milliseconds = 0.0


class Threshold(Entry):
    """The quantity from which on an operation has the rate of this name."""

    name: str
    value: Positive
    unit: str


class Rate(Entry):
    """GB/s (or GFLOP/s where it counts flops) by backend; `None` where nothing is counted."""

    name: str
    counts: Counts
    ane: Positive | None = None
    bnns: Positive | None = None
    classic: Positive | None = None
    gpu: Positive | None = None

    def on(self, backend: Backend) -> float | None:
        """The rate on a backend."""
        rate: float | None = getattr(self, backend)
        return rate


class _Chip(Entry):
    name: str
    system: str
    rates: Mapping[str, Mapping[Backend, Positive]] = Field(default_factory=dict)
    thresholds: Mapping[str, Positive] = Field(default_factory=dict)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tie_ms: Annotated[Positive, Field(alias="tie-ms")]
    undecided_ms: Annotated[Positive, Field(alias="undecided-ms")]
    far: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    without_costs: Annotated[tuple[str, ...], Field(alias="without-costs")]
    sources: Mapping[str, str]
    edge: tuple[Edge, ...]
    threshold: tuple[Threshold, ...]
    rate: tuple[Rate, ...]
    chip: tuple[_Chip, ...]

    @model_validator(mode="after")
    def _consistent(self) -> _File:
        entries: tuple[Entry, ...] = (*self.edge, *self.threshold, *self.rate, *self.chip)
        check_sources(entries, self.sources)
        if sorted(edge.kind for edge in self.edge) != ["end", "launch", "switch"]:
            raise ValueError("edge: launch, switch and end are needed once each")
        for group in (self.threshold, self.rate, self.chip):
            names = [entry.name for entry in group]
            if len({*names}) != len(names):
                raise ValueError("a name is given twice")
        if both := {chip.name for chip in self.chip} & {*self.without_costs}:
            raise ValueError(f"chip {', '.join(both)}: has costs, and is listed without")
        for chip in self.chip:
            if unknown := {*chip.rates} - {rate.name for rate in self.rate}:
                raise ValueError(f"chip {chip.name}: unknown rate {', '.join(sorted(unknown))}")
            if unknown := {*chip.thresholds} - {entry.name for entry in self.threshold}:
                raise ValueError(f"chip {chip.name}: unknown threshold {', '.join(unknown)}")
        return self


@dataclass(frozen=True)
class CostModel:
    """Core ML's cost model of one chip and system.

    Attributes:
        launch, switch, end: milliseconds by backend.
        rates: by name of the class, or of one of its leaves.
        thresholds: by name of the rate they select.
        tie_ms: paths closer than this cost the same.
        undecided_ms: margin below which a prediction is undecided.
    """

    chip: str
    system: str
    launch: Edge
    switch: Edge
    end: Edge
    rates: Mapping[str, Rate]
    thresholds: Mapping[str, float]
    tie_ms: float
    undecided_ms: float


def parse_models(text: str) -> dict[str, CostModel]:
    """Models by chip.

    Raises:
        ManifestError: the text is no TOML, or an entry is wrong.
    """
    return _models(_parse(text))


def _parse(text: str) -> _File:
    try:
        return _File.model_validate(loads(text))
    except ValueError as error:
        raise ManifestError(f"The segmenter's model.toml: {error}") from None


def _models(file: _File) -> dict[str, CostModel]:
    edges = {edge.kind: edge for edge in file.edge}
    models = {}
    for chip in file.chip:
        rates = {
            rate.name: rate.model_copy(
                update={str(unit): value for unit, value in chip.rates.get(rate.name, {}).items()}
            )
            for rate in file.rate
        }
        thresholds = {entry.name: entry.value for entry in file.threshold} | dict(chip.thresholds)
        models[chip.name] = CostModel(
            chip.name,
            chip.system,
            edges["launch"],
            edges["switch"],
            edges["end"],
            rates,
            thresholds,
            file.tie_ms,
            file.undecided_ms,
        )
    return models


@cache
def _file() -> _File:
    return _parse(files(__package__).joinpath("model.toml").read_text("utf-8"))


@cache
def models() -> Mapping[str, CostModel]:
    """The chips whose costs are known, by name: `M4`, `M4 Pro`."""
    return _models(_file())


def chip_named(name: str) -> str:
    """A chip's name as Apple writes it, of those with costs or without.

    Raises:
        ManifestError: there is no such chip.
    """

    def plain(name: str) -> str:
        return "".join(name.split()).casefold()

    names = {plain(chip): chip for chip in (*models(), *_file().without_costs)}
    if chip := names.get(plain(name)):
        return chip
    raise ManifestError(
        f"{printable(name)!r} is no chip with an ANE; give {' or '.join(models())}, or for support "
        "alone another, such as M1, M5 Max or A17 Pro."
    )


def launch_bounds() -> tuple[float, float]:
    """Milliseconds that the ANE has to save in a row of operations on any chip with known costs.

    Returns:
        What is too little by far, and what is enough by far.
    """
    far, edges = _file().far, models().values()
    least = min(m.launch.ane + m.end.ane for m in edges)
    most = max(m.launch.ane + m.switch.ane + m.switch.bnns for m in edges)
    return least / far, most * far
