"""Streams: named arrays `[T, C]` that shards take and give, as their wires say."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from pytest_ane.families.base import Wire
from pytest_ane.sources import FloatArray

Streams: TypeAlias = "dict[str, FloatArray]"


def entering(streams: Streams, wire: Wire) -> FloatArray:
    """What a shard takes: its streams side by side."""
    return np.concatenate([streams[name] for name in wire.takes], axis=1)


def merge(streams: Streams, wire: Wire, given: FloatArray) -> None:
    """Let a shard's output become what its wire says: replace, add to, or lengthen a stream."""
    before = streams.get(wire.gives)
    if before is not None and wire.mode == "add":
        given = before + given
    elif before is not None and wire.mode == "append":
        given = np.concatenate([before, given], axis=1)
    streams[wire.gives] = given
