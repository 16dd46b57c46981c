"""Gemma 3 270M against transformers on a fixed text: perplexity, logits, and its greatest values.

    make examples/gemma-3-270m-q4_k_m.gguf
    python -m benchmarks.gemma3

transformers' model is made of the same file by the package `gguf`, with llama.cpp's own table of
names and its dequantization. The text is the beginning of Alice's Adventures in Wonderland. Takes
one to two minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_ane.manifest import load
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Cut, apply_output, shard_input
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources import open_source
from tests.models.families.decoder.oracle import difference

os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parents[1]
TEXT = Path(__file__).parent / "alice.txt"

PUBLISHED: Mapping[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
}
"""`config.json` of google/gemma-3-270m; what it lacks is transformers' default."""


@dataclass(frozen=True)
class Measured:
    """One model's answers to the text.

    Attributes:
        logits: `[T, V]`.
        largest: of |hidden states| that each block gives.
    """

    ids: list[int]
    logits: FloatArray
    largest: dict[str, float]

    @property
    def perplexity(self) -> float:
        """Of every token but the first."""
        told = torch.log_softmax(torch.from_numpy(self.logits[:-1]).double(), dim=-1)
        return float(torch.exp(-told[torch.arange(len(self.ids) - 1), self.ids[1:]].mean()))


def referred() -> Measured:
    """The float32 reference's."""
    (model,) = load(ROOT / "examples/gemma3-270m.toml").models
    assert model.source is not None
    family = get_family("gemma3")
    source = open_source(model.source, family.spread)
    ids = source.tokenizer.encode(TEXT.read_text())
    opened = family.open_model(source, Cut(model.ids, len(ids)))
    streams, largest = {"x": opened.embed(ids)}, {}
    for wire in family.wiring(model.ids):
        (given,) = opened.reference(wire.shard)([shard_input(streams, wire)])
        apply_output(streams, wire, given)
        if not wire.is_head:
            largest[wire.shard] = float(np.abs(given).max())
    return Measured(ids, streams["logits"], largest)


def right(ids: list[int]) -> Measured:
    """transformers', with the same dequantized weights in its published configuration."""
    import gguf
    import transformers

    config = transformers.Gemma3TextConfig(**PUBLISHED)
    form: Any = transformers.Gemma3ForCausalLM
    model = form(config).eval()
    reader = gguf.GGUFReader(next((ROOT / "examples").glob("gemma-3-270m*.gguf")))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        tensor = stored.pop(str(names.get_name(name, try_suffixes=(".weight",))))
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        # llama.cpp's converter adds the 1 of x (1 + w) to norms.
        parameter.data = torch.from_numpy(weight - ("norm" in name))
    assert not stored
    with torch.inference_mode():
        return Measured(ids, model(torch.tensor([ids])).logits[0].numpy(), {})


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    import transformers

    ours = referred()
    theirs = right(ours.ids)
    same = (ours.logits.argmax(axis=1) == theirs.logits.argmax(axis=1)).mean()
    print(f"{TEXT.name}: {len(ours.ids)} tokens")
    print(f"perplexity: {ours.perplexity:.5f}, transformers {theirs.perplexity:.5f}")
    print(f"(transformers {transformers.__version__}, torch {torch.__version__})")
    print(f"logits: {difference(ours.logits, theirs.logits):.1e} of the largest, top-1 {same:.1%}")
    print("greatest |hidden state| that each block gives:")
    print(", ".join(f"{shard} {value:,.0f}" for shard, value in ours.largest.items()))


if __name__ == "__main__":
    main()
