"""Recorded references: what the float32 model says of each probe, kept in the cache.

The reference costs torch and the source's weights; its answers cost one small file. They are
keyed by everything they depend on, so a warm gate runs the artifact afresh and loads neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pytest_ane.build import Cache
from pytest_ane.digests import key_digest
from pytest_ane.errors import CacheError
from pytest_ane.families import Layout, get_family
from pytest_ane.families.base import LanguageModel
from pytest_ane.fidelity.cases import Case, hidden_case
from pytest_ane.fidelity.probes import seeded
from pytest_ane.manifest import Shard
from pytest_ane.sources import FloatArray

RECORDING_VERSION = 2
_FILE = "recording.safetensors"


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
    blocks: Sequence[str],
    model: Callable[[], LanguageModel],
    max_tokens: int,
) -> Path:
    """Hidden states of the golden prompts before every block and after the last, once per model.

    Returns:
        The entry's folder; tensor `<prompt>/<i>` is `[T, C]`, what enters the i-th block.
    """
    key = {**identity, "recording": RECORDING_VERSION, "hidden": spec, "max": max_tokens}
    key["blocks"] = list(blocks)

    def make(folder: Path) -> None:
        opened = model()
        states = {p.name: opened.embed(p.ids[:max_tokens]) for p in prompts()}
        tensors = {f"{name}/0": state for name, state in states.items()}
        for index, block in enumerate(blocks, start=1):
            run = opened.reference(block)
            for name in states:
                states[name] = run(states[name])
                tensors[f"{name}/{index}"] = states[name]
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
        "probes": probes.model_dump(mode="json"),
        "captured": captured_spec if "captured" in probes.kinds else None,
        "numpy": np.__version__.split(".")[:2],
    }

    def make(folder: Path) -> None:
        opened = model()
        inputs = list(_probes(shard, opened.layout, captured))
        run = opened.reference(shard.id)
        tensors: dict[str, FloatArray] = {}
        for i, (*_, hidden) in enumerate(inputs):
            tensors[f"{i}.input"], tensors[f"{i}.expected"] = hidden, run(hidden)
        names = [[kind, name, start] for kind, name, start, _ in inputs]
        save(folder, tensors, {"probes": names, "description": opened.description})

    folder = cache.get_or_make("recordings", key_digest(key), make)
    assert shard.family is not None
    return _load_cases(folder, get_family(shard.family).layout)


def load_hidden(folder: Path, name: str, index: int) -> FloatArray:
    """A prompt's hidden states `[T, C]` entering the i-th block."""
    return load(folder, f"{name}/{index}")[0][f"{name}/{index}"]


def _probes(
    shard: Shard, layout: Layout, captured: Callable[[], Sequence[tuple[str, FloatArray]]]
) -> Iterator[tuple[str, str, int, FloatArray]]:
    """`(kind, name, first position, hidden [T, C])` of every probe."""
    probes = shard.probes
    lengths = tuple(dict.fromkeys((1, shard.max_tokens)))
    kinds = tuple(probes.kinds)
    for kind, name, hidden in seeded(
        kinds, count=probes.count, seed=probes.seed, lengths=lengths, width=layout.width
    ):
        yield kind, name, 0, hidden
    if "captured" in probes.kinds:
        for name, hidden in captured():
            # Position 0 is unlike any other, so the last stands for a single position.
            for start in dict.fromkeys((len(hidden) - 1, 0)):
                part = hidden[start:]
                yield "captured", f"captured {name} T={len(part)}", start, part


def _load_cases(folder: Path, layout: Callable[[dict[str, Any]], Layout]) -> list[Case]:
    tensors, metadata = load(folder)
    host = layout(metadata["description"])
    return [
        hidden_case(kind, name, tensors[f"{i}.input"], tensors[f"{i}.expected"], host, start)
        for i, (kind, name, start) in enumerate(metadata["probes"])
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
