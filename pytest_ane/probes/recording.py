"""Recorded references: the float32 model's outputs for each probe, kept in the cache.

The reference costs torch and the source's weights; its outputs cost one small file. They are
keyed by everything they depend on, so a warm gate runs the artifact afresh and loads neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pytest_ane.make import Cache
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import CacheError, SourceError
from pytest_ane.models.families import (
    LanguageModel,
    Layout,
    Port,
    Ports,
    Reference,
    Wire,
    apply_output,
    get_family,
    ports_of,
    shard_input,
)
from pytest_ane.probes.hidden import (
    CapturedStates,
    HiddenProbe,
    answered_probes,
    from_tensors,
    to_tensors,
)

RECORDING_VERSION = 11
_FILE = "recording.safetensors"


@dataclass(frozen=True)
class TokenPrompt:
    """A golden prompt as token ids."""

    name: str
    ids: tuple[int, ...]


class Embeds(Protocol):
    """What hidden states are recorded from: an embedding, and each shard's reference."""

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` that enter the first shard."""
        ...

    def reference(self, shard: str) -> Reference:
        """What a shard gives of whole sequences `[T, C]`."""
        ...


def record_hidden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[TokenPrompt]],
    spec: Any,
    wiring: Sequence[Wire],
    model: Callable[[], Embeds],
    name: str = "",
) -> Path:
    """Hidden states of the golden prompts entering and leaving every shard, once per model.

    `name` is the model's, for messages.

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
            for prompt, state in streams.items():
                tensors[f"{prompt}/{wire.shard}/in"] = shard_input(state, wire)
            if wire.is_head:
                continue
            inputs = [tensors[f"{prompt}/{wire.shard}/in"] for prompt in streams]
            for prompt, output in zip(streams, opened.reference(wire.shard)(inputs), strict=True):
                check_finite(output, wire.shard, f"golden prompt {prompt!r}")
                tensors[f"{prompt}/{wire.shard}/out"] = output
                apply_output(streams[prompt], wire, output)
        save(folder, tensors, {})

    return cache.get_or_make("recordings", key_digest(key), make, name)


def record_probes(
    cache: Cache,
    identity: dict[str, Any],
    shard: Shard,
    model: Callable[[], LanguageModel],
    captured: CapturedStates,
    captured_spec: Any,
) -> Path:
    """A family shard's probes with the reference's outputs, its ports and what its layout is of.

    `captured` gives `(prompt, hidden [T, C])` of the states that enter the shard, `captured_spec`
    what these depend on besides the identity. `model` and `captured` are called only when there is
    no recording yet.

    Returns:
        The entry's folder, for `load_probes` and `load_ports`.
    """
    key = {
        **identity,
        "recording": RECORDING_VERSION,
        "shard": shard.id,
        "max": shard.max_tokens,
        "context": shard.context,
        "probes": shard.probes.model_dump(mode="json"),
        "captured": captured_spec if shard.probes.of_prompts else None,
    }

    def make(folder: Path) -> None:
        opened = model()
        probes = answered_probes(opened, shard, captured)
        for probe in probes:
            check_finite(probe.expected, shard.qualified, f"the probe {probe.name!r}")
        tensors, listed = to_tensors(probes)
        about = {"shard": shard.qualified, "description": opened.description}
        ports = asdict(ports_of(opened, shard.id))
        save(folder, tensors, {"probes": listed, "ports": ports, **about})

    return cache.get_or_make("recordings", key_digest(key), make, shard.qualified)


def load_probes(folder: Path, shard: Shard) -> tuple[list[HiddenProbe], Layout]:
    """A family shard's recorded probes, and its layout."""
    assert shard.family is not None
    tensors, metadata = load(folder)
    layout = get_family(shard.family).layout(metadata["description"], shard.id)
    return list(from_tensors(tensors, metadata["probes"])), layout


def load_ports(folder: Path) -> Ports:
    """The ports that were recorded with a shard's probes."""
    recorded = read_metadata(folder)["ports"]
    return Ports(
        **{
            side: tuple(Port(port["name"], tuple(port["shape"])) for port in ports)
            for side, ports in recorded.items()
        }
    )


def check_finite(output: FloatArray, shard: str, probe: str) -> None:
    """Raise `SourceError` where a reference is NaN or infinite: nothing can be held against it."""
    if not np.isfinite(output).all():
        raise SourceError(
            f"The float32 reference of {shard} is NaN or infinite for {probe}, so nothing can be "
            "compared with it; repair the source of its weights."
        )


def load_hidden(
    folder: Path, prompt: str, shard: str, end: Literal["in", "out"] = "in"
) -> FloatArray:
    """A prompt's hidden states `[T, C]` entering a shard, or leaving it if it is no head."""
    name = f"{prompt}/{shard}/{end}"
    return load(folder, name)[0][name]


def save(folder: Path, tensors: dict[str, FloatArray], metadata: dict[str, Any]) -> None:
    """Store tensors and JSON metadata as one safetensors file in an entry's folder.

    Raises:
        OSError: the disk is full, say.
    """
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        save_file(contiguous, folder / _FILE, {"json": json.dumps(metadata)})
    except SafetensorError as error:  # Its text has what the system said.
        raise OSError(str(error)) from error


def load(folder: Path, *names: str) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Read a recording: all tensors or those named, and the metadata.

    Raises:
        CacheError: the file is damaged.
    """
    with _opened(folder) as (file, about):
        return {name: file.get_tensor(name) for name in names or file.keys()}, about


def read_metadata(folder: Path) -> dict[str, Any]:
    """A recording's metadata alone; `CacheError` where the file is damaged."""
    with _opened(folder) as (_, about):
        return about


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A recording's file and its metadata."""
    try:
        with safe_open(folder / _FILE, framework="numpy") as file:
            yield file, json.loads((file.metadata() or {}).get("json", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CacheError(
            f"The recorded reference {folder / _FILE} is damaged ({error}); "
            f"delete the folder {folder} and run again."
        ) from error
