"""transformers' BERT as the independent oracle: tiny checkpoints that it makes, saves and runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Cut
from pytest_ane.models.families.bert import BertModel
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources._safetensors import SafetensorsSource

os.environ["HF_HUB_OFFLINE"] = "1"

VOCABULARY, LENGTH = 61, 24
TINY: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Case:
    """A configuration of transformers.

    Attributes:
        kind: the model's class.
        changes: of `TINY`.
        pooling: what sentence-transformers' files beside it say; no files without it.
        dtype: of the saved weights.
    """

    name: str
    kind: str = "BertModel"
    changes: Mapping[str, Any] = field(default_factory=dict)
    pooling: str | None = None
    normalized: bool = True
    dtype: torch.dtype = torch.float32

    def save(self, folder: Path, seed: int = 0) -> Any:
        """Save a checkpoint with random weights; the model, in float32 whatever was saved."""
        import transformers

        config = transformers.BertConfig(**{**TINY, **self.changes})
        torch.manual_seed(seed)
        model = getattr(transformers, self.kind)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # Norms of 1 and biases of 0 would show nothing.
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        model.to(self.dtype).save_pretrained(folder)
        if self.pooling is not None:
            save_modules(folder, self.pooling, normalized=self.normalized)
        model = model.to(torch.float32)
        return model if self.kind == "BertModel" else model.bert

    def open(self, folder: Path, length: int = LENGTH) -> BertModel:
        """The saved checkpoint as the family sees it, all shards of it."""
        layers = {**TINY, **self.changes}["num_hidden_layers"]
        cut = Cut((*(f"L{i:02d}" for i in range(layers)), "pooling"), max_tokens=length)
        model = get_family("bert").open_model(SafetensorsSource(folder), cut)
        assert isinstance(model, BertModel)
        return model


CASES = (
    Case("plain"),
    Case("minilm", pooling="mean_tokens"),
    Case("bge", pooling="cls_token"),
    Case("e5-not-normalized", pooling="mean_tokens", normalized=False),
    Case("masked-lm", "BertForMaskedLM"),
    Case("pre-training-tanh", "BertForPreTraining", {"hidden_act": "gelu_new"}),
    Case("no-types-relu", changes={"type_vocab_size": 1, "hidden_act": "relu"}),
    Case("odd-head", changes={"hidden_size": 33, "num_attention_heads": 3, "num_hidden_layers": 1}),
    Case("one-head-bf16", changes={"num_attention_heads": 1}, dtype=torch.bfloat16),
    Case("pytorch-tanh-eps", changes={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}),
)


def save_modules(folder: Path, pooling: str, *, normalized: bool, more: Sequence[str] = ()) -> None:
    """What sentence-transformers saves beside a checkpoint."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalized else []), *more]
    modules = [
        {
            "idx": i,
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens")}
    flags[f"pooling_mode_{pooling}"] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))


def expected(model: Any, ids: Sequence[int], padding: int = 0) -> FloatArray:
    """Transformers' last hidden states `[T, C]`, of a batch padded to that many more."""
    mask = [1] * len(ids) + [0] * padding
    with torch.inference_mode():
        states = model(torch.tensor([[*ids, *[0] * padding]]), torch.tensor([mask]))
    hidden: FloatArray = states.last_hidden_state[0, : len(ids)].numpy()
    return hidden


def pooled(hidden: FloatArray, case: Case) -> FloatArray:
    """The embedding `[1, C]`, as sentence-transformers' formulas read."""
    y = hidden[:1] if case.pooling == "cls_token" else hidden.mean(axis=0, keepdims=True)
    if case.pooling is None or not case.normalized:
        return y
    unit: FloatArray = y / np.linalg.norm(y)
    return unit


def referred(model: BertModel, ids: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The reference's last hidden states `[T, C]` and embedding `[1, C]`."""
    x, before = model.embed(ids), None
    for shard in model.shards:
        before, (x,) = x, model.reference(shard)([x])
    assert before is not None
    return before, x


def converted(model: BertModel, ids: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The same of the ANE forms in float32, whose calls are padded."""
    x, before = model.embed(ids), None
    for shard in model.shards:
        conversion, layout = model.conversion(shard), model.layout(shard)
        inputs = layout.inputs(x)
        with torch.inference_mode():
            ports = (torch.from_numpy(inputs[port.name]) for port in conversion.inputs)
            y = conversion.module(*ports).numpy()
        before, x = x, layout.output({"y": y})[: len(x)]
    assert before is not None
    return before, x
