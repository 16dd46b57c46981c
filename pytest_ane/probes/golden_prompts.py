"""Golden prompts: the float32 model's logits and text, recorded once per model in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.make import Cache
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Array, FloatArray, HalfArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.models.chain import Answer, Chain, ChainStep
from pytest_ane.models.families import LanguageModel, Wire
from pytest_ane.probes.recording import RECORDING_VERSION, TokenPrompt, check_finite, load, save

_VERSION = 2
"""Raised whenever logits are packed in another way."""


@dataclass(frozen=True, eq=False)
class GoldenPrompt:
    """One golden prompt with the reference's recorded logits and text.

    Attributes:
        logits: float32 `[T, V]` of the reference; of an encoder the text's embedding `[1, C]`.
        greedy: its greedy continuation; `leads` the best logit minus the second, by token.
        text: the continuation as text.
        sentence: whether it is one that an encoder's prompts rank, and itself no prompt.
    """

    name: str
    ids: tuple[int, ...]
    logits: FloatArray
    greedy: tuple[int, ...]
    leads: tuple[float, ...]
    text: str
    sentence: bool = False


def record_golden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[tuple[TokenPrompt, int]]],
    spec: Any,
    wiring: Sequence[Wire],
    reference: Callable[[], Chain],
    decode: Callable[[Sequence[int]], str],
    name: str = "",
) -> list[GoldenPrompt]:
    """Recorded references of `(prompt, greedy tokens)` pairs, made once.

    `spec` is what the prompts depend on besides the identity; `name` is the model's, for messages.
    `reference` and `prompts` are called only when there is no recording yet.
    """
    key = {**identity, "recording": RECORDING_VERSION, "logits": _VERSION, "golden": spec}
    key["wiring"] = [asdict(wire) for wire in wiring]

    def make(folder: Path) -> None:
        chain = reference()
        tensors: dict[str, Any] = {}
        metadata = []
        for i, (prompt, count) in enumerate(prompts()):
            answer = Answer(chain.embedding(prompt.ids), (), ()) if chain.embeds else None
            logits, tokens, leads = answer or chain.answer(prompt.ids, count)
            check_finite(logits, "the whole model", f"golden prompt {prompt.name!r}")
            if chain.embeds:
                tensors[f"{i}.embedding"] = logits
            else:
                tensors[f"{i}.best"], tensors[f"{i}.below"] = pack(logits)
            check_finite(np.asarray(leads), "the whole model", f"the text after {prompt.name!r}")
            metadata.append([prompt.name, prompt.ids, tokens, leads, decode(tokens)])
        save(folder, tensors, {"golden": metadata})

    tensors, metadata = load(cache.get_or_make("recordings", key_digest(key), make, name))

    def logits(i: int) -> FloatArray:
        if (embedding := tensors.get(f"{i}.embedding")) is not None:
            return embedding
        return unpack(tensors[f"{i}.best"], tensors[f"{i}.below"])

    return [
        GoldenPrompt(prompt, tuple(ids), logits(i), tuple(tokens), tuple(leads), text)
        for i, (prompt, ids, tokens, leads, text) in enumerate(metadata["golden"])
    ]


def reference_chain(model: LanguageModel, wiring: Sequence[Wire]) -> Chain:
    """The float32 modules of all shards as a chain."""

    def step(wire: Wire) -> ChainStep:
        run = model.reference(wire.shard)
        return ChainStep(wire, lambda: lambda hidden: run([hidden])[0])

    return Chain(model.embed, tuple(map(step, wiring)))


def pack(logits: FloatArray) -> tuple[FloatArray, HalfArray]:
    """The best logit `[T]` in float32, and how far all `[T, V]` are from it in fp16.

    KL and cosines need every token, not the likeliest only. The best of all and its ties stay as
    they are; another at distance d moves by at most d / 2048, so the likeliest, which decide the
    statistics, move least. Probabilities beyond d = 65,504 are zero either way.
    """
    best = logits.max(axis=1)
    with np.errstate(invalid="ignore"):
        below = np.maximum(logits - best[:, None], -fp16.MAX)
    return best, below.astype(np.float16)


def unpack(best: FloatArray, below: Array) -> FloatArray:
    """Inverse of `pack`: logits `[T, V]` in float32."""
    logits: FloatArray = below.astype(np.float32) + best[:, None]
    return logits
