"""Thresholds in place of the manifest's: `0.97`, or by shard, `L27:0.95,head*:0.98`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_ane.manifest import Manifest, Shard, select
from pytest_ane.mlprogram.errors import ManifestError


@dataclass(frozen=True)
class Threshold:
    """One key of the fidelity policy for some shards: as written, and by qualified id."""

    field: str
    text: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        """`min-cosine 0.97 for all`, or `min-cosine L27:0.95,head*:0.98`."""
        bare = ":" not in self.text and "," not in self.text
        return f"{self.field.replace('_', '-')} {self.text}{' for all' if bare else ''}"


def read_threshold(manifest: Manifest, field: str, text: str, option: str) -> Threshold:
    """Read `[shards:]number,...`; the last term that names a shard holds.

    `ManifestError`, which names `option`, for another form, a number beyond -1 to 1, or no such
    shard.
    """
    values: dict[str, float] = {}
    for shards, value in _terms(text, option):
        values |= {shard.qualified: value for shard in select(manifest, shards, option)}
    return Threshold(field, text, values)


def overridden(shard: Shard, thresholds: Sequence[Threshold]) -> Shard:
    """The shard with its thresholds replaced, for all its outputs."""
    name = shard.qualified
    update = {t.field: t.values[name] for t in thresholds if name in t.values}
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


def _terms(text: str, option: str) -> Iterator[tuple[str, float]]:
    for term in text.split(","):
        shards, colon, number = term.strip().rpartition(":")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not -1 <= value <= 1 or (colon and not shards.strip()):
            raise ManifestError(
                f"{option}={text}: give a number from -1 to 1, or one for each of some shards, "
                "such as L27:0.95,head*:0.98."
            )
        yield shards.strip() or "all", value
