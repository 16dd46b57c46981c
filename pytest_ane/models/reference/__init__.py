"""References by another hand: the modules of transformers, one shard at a time.

A reference and the converted form share no code and no reading of a file: transformers reads the
configuration, places the tensors, and makes angles, masks and caches. No module here imports a
family, and no converted form imports one of these.

Only what is asked for is in memory: a layer gets its tensors when it is opened, and the others are
stand-ins that transformers' own loop runs through. Hooks put hidden states in before the layer,
take out what a module gets or gives, and end the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference._files import (
    GGUFTensors,
    PublishedTensors,
    Tensors,
    class_of,
    made_from,
    parameter,
    refusing,
    table_of,
)
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import architecture_of, overridden
from pytest_ane.models.sources.tokenizer import quiet

T = TypeVar("T")
_MODULES = "sentence_transformers"

Run: TypeAlias = Callable[[Sequence[FloatArray]], list[FloatArray]]
"""Outputs for whole sequences `[T, C]`, each from position 0."""
Routes: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of the experts that count at each position, the one of largest weight first."""
Choices: TypeAlias = Callable[[Sequence[FloatArray]], list[Routes]]
Rows: TypeAlias = Callable[[Sequence[FloatArray]], list[tuple[int, ...]]]
"""Some positions of each sequence."""


ALL = range(1 << 30)
"""The experts of a shard that has all of a layer's."""
CLOSE = 8 * 2.0**-11
"""How near two values may be, by their products' Euclidean norm: see `close_choices`."""


class TransformersModel:
    """A source as transformers sees it.

    Args:
        source: the opened weights.
        usual: what the configuration of synthetic weights says where the manifest does not.
        kind: a class, such as `transformers.VaultGemmaForCausalLM`; by the source's `model_type`
            where none is given.

    Raises:
        SourceError: transformers has no such model, or does not take its configuration.
    """

    root = "model."
    """What the names of synthetic tensors begin with."""

    def __init__(
        self, source: Source, usual: Mapping[str, Any] | None = None, kind: str = ""
    ) -> None:
        self._kind = class_of(kind) if kind else None
        self.config, self.tensors = self.open_files(source, usual or {})

    def open_files(self, source: Source, usual: Mapping[str, Any]) -> tuple[Any, Tensors]:
        """The configuration of a source, and its tensors."""
        if architecture_of(source.value)[0] == "general.architecture":
            return made_from(table_of(source), source, self._kind), GGUFTensors(source)
        table = overridden(usual, {key: source.value(key) for key in source.keys})
        return made_from(table, source, self._kind), PublishedTensors(source, self.root)

    def layer(self, index: int) -> Layer:
        """Layer `index` of the stack with its tensors."""
        layer = self.opened(index)
        layer.fill()
        return layer

    def opened(self, index: int) -> Layer:
        """Layer `index` without its tensors, so that something may stand in for its parts."""
        return Layer(self, index)

    @cached_property
    def shared(self) -> tuple[Any, list[nn.Module]]:
        """The model that layers are run in, and its layers, as of `_hollow`."""
        return self._hollow()

    def _hollow(self) -> tuple[Any, list[nn.Module]]:
        """A model with stand-ins for its layers, and the layers, none of which has tensors."""
        with self.refusing("does not make a model of layers"):
            model = self.empty()
            layers = self.layers(model)
            self.tensors.fill(model, self.stack(model), deep=False)
        whole = list(layers)
        for i in range(len(layers)):
            layers[i] = Through()
        return model, whole

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """What enters the first layer, `[T, C]`, for token ids."""
        model = self._entrance
        table = model.get_input_embeddings()
        whole = table.weight
        table.weight = parameter(self.tensors.rows(model, table, ids))
        try:
            self.fill_embeddings(model)
            first, tokens = self.layers(model)[0], torch.arange(len(ids))[None]
            with self.refusing("fails"):
                entered, _ = until(first, self.stack(model), input_ids=tokens)
        finally:
            table.weight = whole
        rows: FloatArray = entered[0][0].numpy()
        return rows

    @cached_property
    def _entrance(self) -> Any:
        return self._hollow()[0]

    def refusing(self, what: str) -> AbstractContextManager[None]:
        """Let whatever transformers raises be a `SourceError`."""
        return refusing(f"{self.tensors.source.label}: transformers' class {what}")

    def fill_embeddings(self, model: Any) -> None:
        """Read what tokens go through besides the table."""

    def head(self, start: int, end: int) -> Run:
        """Logits `[T, end - start]` of some tokens, for what leaves the last layer."""
        model, _ = self._hollow()
        with self.refusing("has no head behind a norm"):
            norm, head = self.stack(model).norm, model.get_output_embeddings()
            self.tensors.fill(model, norm)
            head.weight = parameter(self.tensors.rows(model, head, range(start, end)))

        def logits(hidden: FloatArray) -> FloatArray:
            x = batch(hidden)
            with self.refusing("fails"), _entering(norm, x):
                rows: FloatArray = model(inputs_embeds=x, use_cache=False).logits[0].numpy()
            return rows

        return partial(each, logits)

    def empty(self) -> Any:
        """The whole model without tensors; what no file has is computed as when it is loaded."""
        with quiet(), torch.device("meta"):
            model = self.make()
        for module in model.modules():
            for name in module._non_persistent_buffers_set:
                module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
            if module._non_persistent_buffers_set:
                model._init_weights(module)
        self.tensors.meet(model)
        return model.eval()

    def make(self) -> Any:
        """Transformers' model, in float32 and with plain attention."""
        from transformers import AutoModelForCausalLM

        plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
        make = AutoModelForCausalLM.from_config if self._kind is None else self._kind._from_config
        return make(self.config, dtype=torch.float32, **plain)

    def stack(self, model: Any) -> Any:
        """The model without its head."""
        return model.get_decoder()

    def layers(self, model: Any) -> nn.ModuleList:
        """The layers of a model."""
        layers: nn.ModuleList = self.stack(model).layers
        return layers


class DecoderReference(TransformersModel):
    """Whole layers, perhaps with experts; `own` are those of a shard that has some of a layer's."""

    def routed(self, index: int, own: range = ALL) -> Choices:
        """Experts that each position chooses, the one of the largest weight first."""
        layer, experts, _, _ = self.routing(index)

        def tell(x: FloatArray) -> Routes:
            _, which, weights = self.taken(layer, x, experts)[0]
            return chosen(which, weights.masked_fill(~among(which, own), 0))

        return partial(each, tell)

    def undecided(self, index: int, own: range = ALL) -> Rows:
        """Positions at which fp16 cannot tell which experts are chosen."""
        layer, _, gate, top = self.routing(index)

        def tell(x: FloatArray) -> tuple[int, ...]:
            (entered,) = self.taken(layer, x, gate)[0]
            close = close_choices(entered.reshape(-1, entered.shape[-1]), gate.weight, top)
            return rows_of(close[:, own.start : own.stop])

        return partial(each, tell)

    def routing(self, index: int) -> tuple[Layer, nn.Module, Any, int]:
        """A layer whose experts are not read, their stand-in, what chooses them, and how many."""
        layer = self.mixing(index)
        with self.refusing("has no experts behind a gate"):
            mlp = layer.module.mlp
            mlp.experts = Given(None)
            layer.fill()
            return layer, mlp.experts, mlp.gate, mlp.gate.top_k

    def attending(self, index: int) -> Layer:
        """A layer with at least its attention's tensors."""
        return self.layer(index)

    def mixing(self, index: int) -> Layer:
        """A layer without its tensors, as what enters its experts' shard goes through it."""
        return self.opened(index)

    def taken(self, layer: Layer, x: FloatArray, module: nn.Module) -> tuple[list[Any], Any]:
        """As `Layer.taken`, for what enters a shard."""
        return layer.taken(self.states(x), module)

    def states(self, x: FloatArray) -> FloatArray:
        """Hidden states `[T, C]`, without what a shard takes below them."""
        return x[:, : self.config.get_text_config().hidden_size]


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


class Layer:
    """One layer in an otherwise hollow model, where it is put while it is filled or run.

    Attributes:
        module: a copy of transformers' layer.
        stack: the model without its head.
    """

    def __init__(self, of: TransformersModel, index: int) -> None:
        self._of, (self._model, whole) = of, of.shared
        self.module: Any = deepcopy(whole[index])
        self.stack, self._layers = of.stack(self._model), of.layers(self._model)
        self._index, self._tensors = index, of.tensors

    def only(self, *names: str) -> None:
        """Leave out all parts but these, which are the ones that are run."""
        for name, part in list(self.module.named_children()):
            if name not in names and part.state_dict():
                setattr(self.module, name, Through())

    def fill(self, experts: Any = None) -> None:
        """Read the tensors that the layer still lacks; of `experts`, one when it is asked for."""
        with self._placed():
            if experts is not None:
                self._tensors.fill_experts(self._model, experts)
            self._tensors.fill(self._model, self.module)

    def run(self, sequences: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs for hidden states `[T, C]`."""
        return each(lambda hidden: self.given(hidden, self.module), sequences)

    def given(self, hidden: FloatArray, module: nn.Module) -> FloatArray:
        """What a module gives within the layer, the first of several, `[T, ...]`."""
        _, out = self.taken(hidden, module)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return (first[0] if first.ndim > 2 else first).numpy()

    def taken(
        self, hidden: FloatArray, module: nn.Module, cache: Any = None, **more: Any
    ) -> tuple[list[Any], Any]:
        """What enters a module within the layer, in order, and what it gives.

        `cache` gets keys and values; `more` is what the layer takes besides hidden states.
        """
        x = batch(hidden)
        kept = {} if cache is None else {"past_key_values": cache, "use_cache": True}
        fails = self._of.refusing("fails")
        with fails, self._placed(), _entering(self.module, x, **more):
            return until(module, self.stack, inputs_embeds=x, **kept)

    def keys_and_values(self, hidden: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What the layer keeps of `[T, C]`, `[KV, T, d]` each."""
        from transformers import DynamicCache

        cache = DynamicCache()
        self.taken(hidden, self.module.self_attn, cache)
        kept = next(layer for layer in cache.layers if layer.is_initialized)
        return kept.keys[0].numpy(), kept.values[0].numpy()

    @contextmanager
    def _placed(self) -> Iterator[None]:
        before = self._layers[self._index]
        self._layers[self._index] = self.module
        try:
            yield
        finally:
            self._layers[self._index] = before


def until(module: nn.Module, stack: Any, **named: Any) -> tuple[list[Any], Any]:
    """Run a stack of layers up to a module: what enters it, and what it gives."""
    found: list[Any] = []

    def leave(_: Any, args: Any, kwargs: Any, out: Any) -> None:
        found.extend(([*args, *kwargs.values()], out))
        raise _Done

    hook = module.register_forward_hook(leave, with_kwargs=True)
    with hook, torch.inference_mode(), suppress(_Done):
        stack(**{"use_cache": False, **named})
    entered, out = found
    return entered, out


def chosen(index: Tensor, weights: Tensor) -> Routes:
    """Experts `[T, K]` of each position that count, the largest weight first."""
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    rows = zip(index.gather(-1, order).tolist(), weights.tolist(), strict=True)
    return tuple(
        tuple(expert for expert, weight in zip(*row, strict=True) if weight) for row in rows
    )


def among(which: Tensor, own: range) -> Tensor:
    """Which of some experts are a shard's own."""
    return (which >= own.start) & (which < own.stop)


def rows_of(close: Tensor) -> tuple[int, ...]:
    """Positions where any of `[T, E]` is true."""
    rows: list[int] = close.any(dim=-1).nonzero()[:, 0].tolist()
    return tuple(rows)


def close_choices(entered: Tensor, projection: Tensor, top: int) -> Tensor:
    """Experts `[T, E]` of which fp16 cannot tell whether they are among the `top` ones.

    A logit is a sum of products of three fp16 numbers, each rounded by up to 2^-11 of itself and
    independently: its error has a deviation of at most 2^-11 of the products' Euclidean norm.
    `CLOSE` is eight times that, for the difference of two logits.

    Args:
        entered: what enters the projection, `[T, C]`.
        projection: `[E, C]`.
        top: as many as are chosen.
    """
    logits = entered @ projection.T
    noise = CLOSE * (entered.square() @ projection.T.square()).sqrt()
    if top >= logits.shape[-1]:
        return torch.zeros_like(logits, dtype=torch.bool)
    values = logits.sort(dim=-1, descending=True).values
    last, next_ = values[:, top - 1, None], values[:, top, None]
    return torch.where(logits >= last, logits - next_, last - logits) <= noise


class Given(nn.Module):
    """Stands in for a module: gives the same, whatever it gets."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *args: Any, **named: Any) -> Any:
        """The value."""
        return self.value


class Through(nn.Module):
    """Stands in for a module or a layer: gives what it gets."""

    weight = torch.zeros(())
    """Layers look at the dtype of norms' weights."""

    def forward(self, hidden_states: Tensor, *rest: Any, **named: Any) -> Any:
        """What enters, alone or in order."""
        return (hidden_states, *rest) if rest else hidden_states


class _Embedded(nn.Module):
    """Stands in for the embeddings, which are not looked at."""

    def forward(self, *, inputs_embeds: Tensor, **named: Any) -> Tensor:
        return inputs_embeds


class _Done(Exception):
    """Ends a run: what it was for is there."""


def _entering(module: nn.Module, x: Tensor, **more: Any) -> RemovableHandle:
    """In a block, have `x` enter a module in place of what comes."""

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return (x,), {k: v for k, v in kwargs.items() if k != "hidden_states"} | more

    return module.register_forward_pre_hook(enter, with_kwargs=True)


def batch(rows: FloatArray) -> Tensor:
    """Rows `[T, C]` as `[1, T, C]`."""
    return torch.from_numpy(np.ascontiguousarray(rows))[None]


def each(run: Callable[[FloatArray], T], sequences: Sequence[FloatArray]) -> list[T]:
    """What is computed of sequences `[T, C]`, one after another."""
    with torch.inference_mode():
        return [run(hidden) for hidden in sequences]


def together(
    run: Callable[[FloatArray], FloatArray], sequences: Sequence[FloatArray]
) -> list[FloatArray]:
    """As `each`, all rows at once, where positions do not see one another."""
    if not sequences:
        return []
    with torch.inference_mode():
        rows = run(np.concatenate(sequences))
    return np.split(rows, np.cumsum([len(x) for x in sequences])[:-1])


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
        return (F.normalize(y) if unit else y).numpy()

    return partial(each, pooled)
