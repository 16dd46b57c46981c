"""Recorded references: what the float32 model says of each probe, kept in the cache.

The reference costs torch and the source's weights; its answers cost one small file. They are
keyed by everything they depend on, so a warm gate runs the artifact afresh and loads neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pytest_ane.build import Cache
from pytest_ane.digests import key_digest
from pytest_ane.errors import CacheError
from pytest_ane.families import (
    Family,
    LanguageModel,
    Layout,
    Wire,
    entering,
    get_family,
    merge,
)
from pytest_ane.fidelity.cases import Case, hidden_case
from pytest_ane.fidelity.probes import seeded
from pytest_ane.manifest import Shard
from pytest_ane.sources import FloatArray

RECORDING_VERSION = 3
_FILE = "recording.safetensors"
_STEPS = 8
"""Positions of a seeded probe of a shard with states: enough for several calls of the largest T."""


@dataclass(frozen=True)
class Prompt:
    """A golden prompt as token ids."""

    name: str
    ids: tuple[int, ...]


def record_hidden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[Prompt]],
    spec: Any,
    wiring: Sequence[Wire],
    model: Callable[[], LanguageModel],
) -> Path:
    """Hidden states of the golden prompts entering and leaving every shard, once per model.

    Returns:
        The entry's folder; tensors `<prompt>/<shard>/in` and, but for the head, `.../out`, each
        `[T, C]`.
    """
    key = {**identity, "recording": RECORDING_VERSION, "hidden": spec}
    key["wiring"] = [asdict(wire) for wire in wiring]

    def make(folder: Path) -> None:
        opened = model()
        streams = {p.name: {"x": opened.embed(p.ids)} for p in prompts()}
        tensors: dict[str, FloatArray] = {}
        for wire in wiring:
            for name, state in streams.items():
                tensors[f"{name}/{wire.shard}/in"] = entering(state, wire)
            if wire.mode == "append":
                continue
            inputs = [tensors[f"{name}/{wire.shard}/in"] for name in streams]
            for name, given in zip(streams, opened.reference(wire.shard)(inputs), strict=True):
                tensors[f"{name}/{wire.shard}/out"] = given
                merge(streams[name], wire, given)
        save(folder, tensors, {})

    return cache.get_or_make("recordings", key_digest(key), make)


def record_cases(
    cache: Cache,
    identity: dict[str, Any],
    shard: Shard,
    model: Callable[[], LanguageModel],
    captured: Callable[[], Sequence[tuple[str, FloatArray]]],
    captured_spec: Any,
) -> list[Case]:
    """A family shard's cases: seeded and captured probes with the reference's outputs.

    `captured` gives `(prompt, hidden [T, C])` of the states that enter the shard, `captured_spec`
    what these depend on beside the identity. `model` and `captured` are called only when there is
    no recording yet.
    """
    probes = shard.probes
    key = {
        **identity,
        "recording": RECORDING_VERSION,
        "shard": shard.id,
        "max": shard.max_tokens,
        "context": shard.context,
        "probes": probes.model_dump(mode="json"),
        "captured": captured_spec if "captured" in probes.kinds else None,
        "numpy": np.__version__.split(".")[:2],
    }

    def make(folder: Path) -> None:
        opened = model()
        probes = list(_probes(shard, opened.layout(shard.id), captured))
        expected = opened.reference(shard.id)([probe.hidden for probe in probes])
        tensors: dict[str, FloatArray] = {}
        for i, (probe, rows) in enumerate(zip(probes, expected, strict=True)):
            tensors[f"{i}.input"], tensors[f"{i}.expected"] = probe.hidden, rows
        listed = [[p.kind, p.name, p.start, p.chunk] for p in probes]
        save(folder, tensors, {"probes": listed, "description": opened.description})

    folder = cache.get_or_make("recordings", key_digest(key), make)
    assert shard.family is not None
    return _load_cases(folder, shard.id, get_family(shard.family))


def load_hidden(
    folder: Path, prompt: str, shard: str, end: Literal["in", "out"] = "in"
) -> FloatArray:
    """A prompt's hidden states `[T, C]` entering a shard, or leaving it if it is no head."""
    name = f"{prompt}/{shard}/{end}"
    return load(folder, name)[0][name]


@dataclass(frozen=True, eq=False)
class _Probe:
    """Hidden states `[T, C]`, where in a prompt they begin, and the largest T of a call."""

    kind: str
    name: str
    start: int
    chunk: int
    hidden: FloatArray


def _probes(
    shard: Shard, layout: Layout, captured: Callable[[], Sequence[tuple[str, FloatArray]]]
) -> Iterator[_Probe]:
    probes, stateful = shard.probes, layout.sees == "state"
    for length, chunk in _lengths(shard, stateful):
        for kind, name, hidden in seeded(
            tuple(probes.kinds),
            count=probes.count,
            seed=probes.seed,
            lengths=(length,),
            width=layout.width,
        ):
            by = f" in steps of {chunk}" if stateful else ""
            yield _Probe(kind, name + by, 0, chunk, hidden)
    if "captured" not in probes.kinds:
        return
    for name, hidden in captured():
        # Position 0 is unlike any other, so the last stands for a single position; states need all.
        for start in (0,) if stateful else dict.fromkeys((len(hidden) - 1, 0)):
            part = hidden[start:]
            name = f"captured {name} T={len(part)}"
            yield _Probe("captured", name, start, shard.max_tokens, part)


def _lengths(shard: Shard, stateful: bool) -> list[tuple[int, int]]:
    """`(positions, largest T of a call)` of the seeded probes: the ends of what a call takes."""
    ends = list(dict.fromkeys((1, shard.max_tokens)))
    steps = min(_STEPS, shard.context)
    return [(steps if stateful else end, end) for end in ends]


def _load_cases(folder: Path, shard: str, family: Family) -> list[Case]:
    tensors, metadata = load(folder)
    host = family.layout(metadata["description"], shard)
    return [
        hidden_case(kind, name, tensors[f"{i}.input"], tensors[f"{i}.expected"], host, start, chunk)
        for i, (kind, name, start, chunk) in enumerate(metadata["probes"])
    ]


def save(folder: Path, tensors: dict[str, FloatArray], metadata: dict[str, Any]) -> None:
    """Store tensors and JSON metadata as one safetensors file in an entry's folder."""
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, folder / _FILE, {"json": json.dumps(metadata)})


def load(folder: Path, *names: str) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Read a recording: all tensors or those named, and the metadata.

    Raises:
        CacheError: the file is damaged.
    """
    try:
        with safe_open(folder / _FILE, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get("json", "{}"))
            return {name: file.get_tensor(name) for name in names or file.keys()}, metadata
    except (OSError, SafetensorError, ValueError) as error:
        raise CacheError(
            f"The recorded reference {folder / _FILE} is damaged ({error}); "
            f"delete the folder {folder} and run again."
        ) from error
