"""transformers as the independent oracle: tiny checkpoints that it makes, saves and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Cut, Streams, Wire, apply_output, shard_input
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.families.gemma4 import Gemma4Model, layer_shards
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.families.zaya import ZayaModel
from pytest_ane.models.sources._safetensors import SafetensorsSource

os.environ["HF_HUB_OFFLINE"] = "1"

VOCABULARY = 61
TINY: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAX_TOKENS, CONTEXT = 8, 96
_PLAIN = {"experts_implementation": "eager"}
"""transformers' grouped product of experts takes sizes of multiples of 16 bytes alone."""


@dataclass(frozen=True)
class Case:
    """A configuration of transformers, and the family that reads what it saves.

    Attributes:
        kind: the name of the configuration's class, without `Config`.
        changes: of `TINY`.
        dtype: of the saved weights.
        prepare: changes the random weights before they are saved.
        layers: shards of one layer of transformers.
    """

    name: str
    family: str
    kind: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    prepare: Callable[[Any], None] | None = None
    layers: int = 1

    def save(self, folder: Path, seed: int = 0) -> Any:
        """Save a checkpoint with random weights; the model, in float32 whatever was saved."""
        import transformers

        config = getattr(transformers, f"{self.kind}Config")(**{**TINY, **self.changes})
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, **_PLAIN).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # Norms of 1 and biases of 0 would show nothing.
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
            if self.prepare is not None:
                self.prepare(model)
        model.to(self.dtype).save_pretrained(folder)
        # Read again: casting the model has rounded its frequencies too.
        return type(model).from_pretrained(folder, dtype=torch.float32, **_PLAIN).eval()

    @property
    def shards(self) -> tuple[str, ...]:
        """All of the model."""
        numbers = range({**TINY, **self.changes}["num_hidden_layers"] * self.layers)
        layers = [layer_shards(i) if self.family == "gemma4" else (f"L{i:02d}",) for i in numbers]
        return (*(shard for layer in layers for shard in layer), "head.0", "head.1")

    def open(self, folder: Path, *, stateful: bool) -> DecoderModel:
        """The saved checkpoint as the family sees it, all shards of it."""
        tokens = MAX_TOKENS if stateful else CONTEXT
        cut = Cut(self.shards, max_tokens=tokens, context=CONTEXT, stateful=stateful)
        model = get_family(self.family).open_model(SafetensorsSource(folder), cut)
        assert isinstance(model, DecoderModel)
        if isinstance(model, (Gemma4Model, ZayaModel)):
            model.dtype = np.float32  # What is compared is the form, not the rounding of weights.
        return model


def prompt(length: int, seed: int = 1) -> list[int]:
    """Random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()
    return ids


def expected(model: Any, ids: Sequence[int]) -> FloatArray:
    """Transformers' logits `[T, V]`."""
    with torch.inference_mode():
        logits: FloatArray = model(torch.tensor([list(ids)])).logits[0].numpy()
    return logits


def referred(model: DecoderModel, ids: Sequence[int]) -> FloatArray:
    """Logits `[T, V]` of the float32 reference."""
    streams = {"x": model.embed(ids)}
    for wire in wired(model):
        (given,) = model.reference(wire.shard)([shard_input(streams, wire)])
        apply_output(streams, wire, given)
    return streams["logits"]


def wired(model: DecoderModel) -> tuple[Wire, ...]:
    """The model's shards in running order."""
    return get_family(model.config.family).wiring(model.shards)


class Converted:
    """The shards' ANE forms in float32, fed call by call."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self._modules = {shard: model.conversion(shard).module.float() for shard in model.shards}
        self._wires = get_family(model.config.family).wiring(model.shards)
        self._position = 0

    def __call__(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` after more tokens."""
        streams: Streams = {"x": self._model.embed(ids)}
        for wire in self._wires:
            module, layout = self._modules[wire.shard], self._model.layout(wire.shard)
            inputs = layout.inputs(shard_input(streams, wire), self._position)
            ports = [port.name for port in self._model.ports(wire.shard).inputs]
            with torch.inference_mode():
                module = self._modules[wire.shard]
                y = module(*(torch.from_numpy(inputs[name]) for name in ports)).numpy()
            apply_output(streams, wire, layout.output({"y": y}))
        self._position += len(ids)
        return streams["logits"]


def difference(actual: FloatArray, right: FloatArray) -> float:
    """The greatest, relative to the largest logit."""
    assert actual.shape == right.shape
    return float(np.abs(actual - right).max() / np.abs(right).max())
