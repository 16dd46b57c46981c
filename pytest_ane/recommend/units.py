"""Units: the weights of a shard that get one setting together, and what each setting costs them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from pytest_ane.build.census import Weight
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.manifest import Settings, Uncompressed

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Option:
    """A setting for a unit.

    Attributes:
        size: bytes of the unit's weights as stored.
        sse: sum of squared differences from the uncompressed weights.
    """

    setting: str
    size: int
    sse: float


@dataclass(frozen=True)
class Unit:
    """Weights of one shard that are alike but for numbers in their names.

    Attributes:
        glob: names them, and no others of the shard.
        options: smallest first; settings that do not fit the weights are not among them.
    """

    shard: str
    glob: str
    options: tuple[Option, ...]

    def option(self, setting: str) -> Option:
        """The option of a setting."""
        return next(o for o in self.options if o.setting == setting)

    def __str__(self) -> str:
        return f"{self.shard} {self.glob}"


def to_data(unit: Unit) -> dict[str, Any]:
    """JSON data of a unit."""
    return asdict(unit)


def from_data(data: Mapping[str, Any]) -> Unit:
    """The unit that `to_data` made data of."""
    return Unit(data["shard"], data["glob"], tuple(Option(**each) for each in data["options"]))


Choice: TypeAlias = Mapping[Unit, str]
"""A setting for every unit of a model."""


def units_of(
    shard: str, built: Mapping[str, CompressionMeasurement], keep: Sequence[str]
) -> tuple[Unit, ...]:
    """The units of a shard, from what each setting made of all its weights.

    A weight that some setting compresses is in a unit, unless `keep` names it.
    """
    tables = {name: {w.name: w for w in m.census.weights} for name, m in built.items()}
    errors = {name: {d.name: d.sse for d in m.distortions} for name, m in built.items()}
    known = set.intersection(*(set(found) for found in errors.values()))
    compressed = {w.name: None for found in tables.values() for w in found.values() if w.stages}
    names = [n for n in compressed if n in known and not any(fnmatchcase(n, k) for k in keep)]
    everything = {name for found in tables.values() for name in found}
    return tuple(
        Unit(shard, glob, options)
        for glob, group in _grouped(names, everything).items()
        if (options := _options(group, tables, errors))
    )


def _grouped(names: Sequence[str], everything: set[str]) -> dict[str, list[str]]:
    """Names by the glob that takes numbers for any; by itself where that would name others."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBERS.sub("*", name), []).append(name)
    found: dict[str, list[str]] = {}
    for glob, group in groups.items():
        matched = {name for name in everything if fnmatchcase(name, glob)}
        alike = len(group) > 1 and matched == set(group)
        found |= {glob: group} if alike else {name: [name] for name in group}
    return found


def _options(
    names: Sequence[str],
    tables: Mapping[str, Mapping[str, Weight]],
    errors: Mapping[str, Mapping[str, float]],
) -> tuple[Option, ...]:
    options = []
    for setting, weights in tables.items():
        mine = [weights[name] for name in names if name in weights]
        if len(mine) == len(names) and all(weight.stages for weight in mine):
            size = sum(weight.compressed_bytes for weight in mine)
            options.append(Option(setting, size, sum(errors[setting][name] for name in names)))
    return tuple(sorted(options, key=lambda o: (o.size, o.sse)))


def compression(
    units: Sequence[Unit], choice: Choice, menu: Mapping[str, Settings], keep: Sequence[str]
) -> Settings:
    """What a manifest says to give every unit of a shard its setting.

    The setting that most bytes have is the table's own, the others are overrides. A shard in which
    nothing is large enough stays as it is.
    """
    if not units:
        return Uncompressed()
    weight: Counter[str] = Counter()
    for unit in units:
        weight[choice[unit]] += unit.options[-1].size
    # Of equals the one that comes first in the menu, so that the same choice is always said alike.
    order = list(menu)
    main = max(weight, key=lambda name: (weight[name], -order.index(name)))
    overrides = [
        {"weights": unit.glob} | _differing(menu[choice[unit]], menu[main])
        for unit in units
        if choice[unit] != main
    ]
    table = said(menu[main]) | {"keep": list(keep), "overrides": overrides}
    return type(menu[main]).model_validate(table)


def said(setting: Settings) -> dict[str, Any]:
    """A setting as one writes it: what decides most first, else what differs from the defaults."""
    dumped = setting.model_dump(mode="json")
    keys = ["method", *(("mode", "nbits", "group_size") if setting.method == "palettize" else ())]
    given = setting.model_dump(mode="json", exclude_defaults=True)
    last = {key: given.pop(key) for key in ("keep", "overrides") if key in given}
    return {key: dumped[key] for key in keys} | given | last


def _differing(setting: Settings, main: Settings) -> dict[str, Any]:
    """What an override has to say beside the table it is in."""
    if setting.method != main.method:
        return said(setting)
    mine, other = setting.model_dump(mode="json"), main.model_dump(mode="json")
    return {key: value for key, value in mine.items() if value != other[key]}
