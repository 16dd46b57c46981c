"""Thresholds given by options and ini: `0.97`, or by shard, `L27:0.95,head*:0.98`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_ane.manifest import Manifest, Shard, select
from pytest_ane.plugin.settings import origin, text

OPTIONS = {"ane_min_cosine": "min_cosine", "ane_min_contribution": "min_contribution"}
"""Options, and the key of the fidelity policy that each overrides."""


@dataclass(frozen=True)
class Threshold:
    """One key of the fidelity policy, overridden for some shards.

    Attributes:
        field: the key in Python's spelling.
        given: as it was written.
        values: by qualified shard.
    """

    field: str
    given: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        """`min-cosine 0.97 for all`, or `min-cosine L27:0.95,head*:0.98`."""
        bare = ":" not in self.given and "," not in self.given
        return f"{self.field.replace('_', '-')} {self.given}{' for all' if bare else ''}"


def thresholds(config: pytest.Config, manifest: Manifest) -> tuple[Threshold, ...]:
    """What options and ini values override.

    Raises:
        pytest.UsageError: a text is not of the form `[shards:]number,...`, -1 to 1.
        ManifestError: shards are named that do not exist.
    """
    found = []
    for name, field in OPTIONS.items():
        if given := text(config, name):
            values: dict[str, float] = {}
            for shards, value in _terms(config, name, given):
                chosen = select(manifest, shards, origin(config, name))
                values |= {shard.qualified: value for shard in chosen}
            found.append(Threshold(field, given, values))
    return tuple(found)


def overridden(shard: Shard, given: Sequence[Threshold]) -> Shard:
    """The shard with the thresholds that were given for it, which hold for all its outputs."""
    update = {
        one.field: one.values[shard.qualified] for one in given if shard.qualified in one.values
    }
    if not update:
        return shard
    own = shard.policy.fidelity
    outputs = {
        name: output.model_copy(update=dict.fromkeys(update))
        for name, output in own.outputs.items()
    }
    fidelity = own.model_copy(update={**update, "outputs": outputs})
    policy = shard.policy.model_copy(update={"fidelity": fidelity})
    return shard.model_copy(update={"policy": policy})


def _terms(config: pytest.Config, name: str, given: str) -> Iterator[tuple[str, float]]:
    for term in given.split(","):
        shards, colon, number = term.strip().rpartition(":")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not -1 <= value <= 1 or (colon and not shards.strip()):
            raise pytest.UsageError(
                f"{origin(config, name)}={given}: give a number from -1 to 1, or one for each of "
                "some shards, such as L27:0.95,head*:0.98."
            )
        yield shards.strip() or "all", value
