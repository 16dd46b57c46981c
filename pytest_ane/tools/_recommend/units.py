"""Units: the weights of a shard that get one setting together, and what each setting costs them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.manifest import Settings, Uncompressed
from pytest_ane.manifest.compression import override_keys, setting_keys
from pytest_ane.mlprogram.census import Weight

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
        """The option of a setting, which must be one of the unit's."""
        return next(o for o in self.options if o.setting == setting)

    def __str__(self) -> str:
        return f"{self.shard} {self.glob}"


Choice: TypeAlias = Mapping[Unit, str]
"""A setting for every unit of a model."""


def units_of(
    shard: str, built: Mapping[str, CompressionMeasurement], keep: Sequence[str]
) -> tuple[Unit, ...]:
    """The units of a shard, from a compression measurement by setting, each for all weights.

    A weight that some setting compresses is in a unit, unless `keep` names it.
    """
    tables = {name: {w.name: w for w in m.census.weights} for name, m in built.items()}
    errors = {name: {d.name: d.sse for d in m.distortions} for name, m in built.items()}
    measured = set.intersection(*map(set, errors.values()))
    compressed = {w.name: None for table in tables.values() for w in table.values() if w.stages}
    names = [n for n in compressed if n in measured and not any(fnmatchcase(n, k) for k in keep)]
    everything = {name for table in tables.values() for name in table}
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
    distinct: dict[str, list[str]] = {}
    for glob, group in groups.items():
        matched = {name for name in everything if fnmatchcase(name, glob)}
        alike = len(group) > 1 and matched == set(group)
        distinct |= {glob: group} if alike else {name: [name] for name in group}
    return distinct


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


def shard_settings(
    units: Sequence[Unit], choice: Choice, menu: Mapping[str, Settings], keep: Sequence[str]
) -> Settings:
    """The compression table of a shard that gives every unit its setting.

    The setting that most bytes have is the table's own, the others are overrides. A shard without
    units stays uncompressed.
    """
    if not units:
        return Uncompressed()
    weight: Counter[str] = Counter()
    for unit in units:
        weight[choice[unit]] += unit.options[-1].size
    # Of equals the first in the menu, so that the same choice always makes the same table.
    order = list(menu)
    main = max(weight, key=lambda name: (weight[name], -order.index(name)))
    overrides = [
        {"weights": unit.glob} | override_keys(menu[choice[unit]], menu[main])
        for unit in units
        if choice[unit] != main
    ]
    table = setting_keys(menu[main]) | {"keep": list(keep), "overrides": overrides}
    return type(menu[main]).model_validate(table)
