"""Golden prompts: what the float32 model says to them, recorded once per model in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ane.behaviour.chain import Chain, Step
from pytest_ane.build import Cache
from pytest_ane.digests import key_digest
from pytest_ane.families import LanguageModel, Wire
from pytest_ane.fidelity.recording import RECORDING_VERSION, Prompt, load, save
from pytest_ane.sources import FloatArray


@dataclass(frozen=True, eq=False)
class Golden:
    """One prompt's recorded reference.

    Attributes:
        logits: `[T, V]` of the float32 model.
        greedy: its likeliest continuation; `leads` how far each token led, in logits.
        text: the continuation as text.
    """

    name: str
    ids: tuple[int, ...]
    logits: FloatArray
    greedy: tuple[int, ...]
    leads: tuple[float, ...]
    text: str


def record_golden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[tuple[Prompt, int]]],
    spec: Any,
    wiring: Sequence[Wire],
    model: Callable[[], LanguageModel],
    decode: Callable[[Sequence[int]], str],
) -> list[Golden]:
    """Recorded references of `(prompt, greedy tokens)` pairs, made from the float32 modules once.

    `spec` is what the prompts depend on beside the identity. `model` and `prompts` are called only
    when there is no recording yet.
    """
    key = {**identity, "recording": RECORDING_VERSION, "golden": spec}
    key["wiring"] = [asdict(wire) for wire in wiring]

    def make(folder: Any) -> None:
        reference = reference_chain(model(), wiring)
        tensors: dict[str, FloatArray] = {}
        metadata = []
        for i, (prompt, count) in enumerate(prompts()):
            tensors[f"{i}.logits"] = reference.logits(prompt.ids)
            tokens, leads = reference.greedy(prompt.ids, count)
            metadata.append([prompt.name, prompt.ids, tokens, leads, decode(tokens)])
        save(folder, tensors, {"golden": metadata})

    tensors, metadata = load(cache.get_or_make("recordings", key_digest(key), make))
    return [
        Golden(name, tuple(ids), tensors[f"{i}.logits"], tuple(tokens), tuple(leads), text)
        for i, (name, ids, tokens, leads, text) in enumerate(metadata["golden"])
    ]


def reference_chain(model: LanguageModel, wiring: Sequence[Wire]) -> Chain:
    """The float32 modules of all shards as a chain."""

    def step(wire: Wire) -> Step:
        run = model.reference(wire.shard)
        return Step(wire, lambda: lambda hidden: run([hidden])[0])

    return Chain(model.embed, tuple(map(step, wiring)))
