"""BERT's blocks, what enters the first one, and pooling."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference import Given, Layer, Run, TransformersModel, each
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import architecture_of

_MODULES = "sentence_transformers"


class BertReference(TransformersModel):
    """transformers' encoder; a text is computed without padding, which no position may see."""

    def fill_embeddings(self, model: Any) -> None:
        """All of the embeddings, which end in a norm."""
        self.tensors.fill(model, model.embeddings)

    def opened(self, index: int) -> Layer:
        """As of any model, with hidden states for embeddings."""
        layer = super().opened(index)
        layer.stack.embeddings = _Embedded()
        return layer

    def path(self, index: int) -> Run:
        """What a block gives if neither of its halves adds anything."""
        layer = self.opened(index)
        block = layer.module
        block.attention.self = Given((None, None))
        block.attention.output.dense = block.output.dense = Given(torch.zeros(()))
        block.intermediate = Given(None)
        layer.fill()
        return layer.run

    def make(self) -> Any:
        """The encoder alone."""
        from transformers import AutoModel

        return AutoModel.from_config(
            self.config, dtype=torch.float32, attn_implementation="eager", add_pooling_layer=False
        )

    def stack(self, model: Any) -> Any:
        """All of it."""
        return model

    def layers(self, model: Any) -> nn.ModuleList:
        """The encoder's."""
        layers: nn.ModuleList = model.encoder.layer
        return layers


class _Embedded(nn.Module):
    """Stands in for the embeddings, which are not looked at."""

    def forward(self, *, inputs_embeds: Tensor, **named: Any) -> Tensor:
        return inputs_embeds


def pooling(source: Source) -> Run:
    """The embedding `[1, C]` of a text's last hidden states, as sentence-transformers makes it.

    Its files, or llama.cpp's `pooling_type`, say whether the first position stands for all, 2, or
    their mean, 1, and whether the norm is 1; without them it is the mean as it is.
    """
    if architecture_of(source.value)[0] == "general.architecture":
        kind = source.value("bert.pooling_type") if "bert.pooling_type" in source.keys else 0
        first, unit = kind == 2, kind != 0
    else:
        told = source.value(_MODULES) if _MODULES in source.keys else {}
        first, unit = told.get("pooling") == "cls", told.get("normalize", False)

    def pooled(hidden: FloatArray) -> FloatArray:
        x = torch.from_numpy(hidden)
        y = x[:1] if first else x.mean(dim=0, keepdim=True)
        rows: FloatArray = (F.normalize(y) if unit else y).numpy()
        return rows

    return partial(each, pooled)
