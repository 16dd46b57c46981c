"""Policies: what a measurement must reach to pass."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pytest_ane.manifest.base import Record

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]i?)?B")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def size(value: object) -> object:
    """Bytes of `5000000`, `"5 MB"` or `"4.8 MiB"`.

    Raises:
        ValueError: a text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError('must be a number of bytes or a size such as "5 MB" or "4.8 MiB"')
    return int(float(match[1]) * _UNITS[match[2] or ""])


Size = Annotated[int, BeforeValidator(size), Field(ge=0)]


class PlacementPolicy(Record):
    """Where a shard must run."""

    require: Literal["forecast"] = "forecast"
    """What counts as evidence: `forecast` from documented rules."""
    os: Annotated[str, Field(pattern=r"^macOS \d+$")] = "macOS 26"
    """System the shards are for; decides the size rule: 2 GiB up to macOS 26, 1 GiB from 27."""


class CompressionPolicy(Record):
    """How small a shard must be."""

    max_bytes: Size | None = None
    """Budget on disk: bytes, or a size such as "5 MB" or "4.8 MiB"."""
    min_ratio: Annotated[float, Field(gt=0)] | None = None
    """Bytes of all weights in fp16 over bytes on disk."""


class FidelityPolicy(Record):
    """How close a shard must be to its reference."""

    min_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.97
    """Lowest cosine of any position of any live probe."""
    min_live_probes: Annotated[int, Field(ge=1)] = 1
    """Probes on which artifact and reference are not both zero."""


class BehaviourPolicy(Record):
    """How close the whole stack must be. Position 0 of each prompt is left out."""

    min_top1: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Share of positions with the reference's likeliest token."""
    max_kl: Annotated[float, Field(ge=0)] = 0.05
    """Mean KL(reference || shards) in nats."""
    min_centred_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """Lowest cosine of mean-free logits at any position."""
    min_greedy: Annotated[int, Field(ge=0)] = 10
    """Equal greedy tokens before the first difference, in every prompt."""
    tie_margin: Annotated[float, Field(ge=0)] = 0.5
    """A greedy difference counts as a tie where the reference led by fewer logits than this."""


class Policy(Record):
    """All policies of a shard."""

    placement: PlacementPolicy = PlacementPolicy()
    """Where it must run."""
    compression: CompressionPolicy = CompressionPolicy()
    """How small it must be."""
    fidelity: FidelityPolicy = FidelityPolicy()
    """How close to its reference."""
    behaviour: BehaviourPolicy = BehaviourPolicy()
    """How close the whole stack must be."""
    unproven: Literal["fail", "allow"] = "fail"
    """What becomes of a gate that could compare nothing."""
