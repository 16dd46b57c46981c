"""References by another hand: the modules of transformers, one shard at a time.

A reference and the converted form share no code and no reading of a file: transformers reads the
configuration, places the tensors, and makes angles, masks and caches. No module here imports a
family, and no converted form imports one of these.

    model = TransformersModel(source)
    (y,) = model.block(7)([hidden])           # float32 [T, C] to [T, C], from position 0

Only what is asked for is in memory: a model begins on torch's meta device, a layer gets its tensors
when it is opened, and the other layers are stand-ins that transformers' own loop runs through.
Hooks put hidden states in before the layer, take out what a module gets or gives, and end the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference._files import (
    PublishedTensors,
    Tensors,
    class_of,
    made_from,
    parameter,
    quiet,
)
from pytest_ane.models.reference._gguf import GGUFTensors, table_of
from pytest_ane.models.reference._routing import chosen, close_choices, rows_of
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import architecture_of, overridden

T = TypeVar("T")

Run: TypeAlias = Callable[[Sequence[FloatArray]], list[FloatArray]]
"""Outputs for whole sequences `[T, C]`, each from position 0."""
Routes: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of the experts that count at each position, the one of largest weight first."""
Choices: TypeAlias = Callable[[Sequence[FloatArray]], list[Routes]]
Rows: TypeAlias = Callable[[Sequence[FloatArray]], list[tuple[int, ...]]]
"""Some positions of each sequence."""


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
        self.config, self._tensors = self.open_files(source, usual or {})

    def open_files(self, source: Source, usual: Mapping[str, Any]) -> tuple[Any, Tensors]:
        """The configuration of a source, and its tensors."""
        key, _ = architecture_of(source.value)
        if key == "general.architecture":
            table = table_of(source)
            return made_from(table, source, self._kind), GGUFTensors(source)
        table = overridden(usual, {key: source.value(key) for key in source.keys})
        return made_from(table, source, self._kind), PublishedTensors(source, self.root)

    def block(self, index: int) -> Run:
        """A whole layer."""
        return self.layer(index).run

    def layer(self, index: int) -> Layer:
        """Layer `index` of the stack with its tensors."""
        layer = self.opened(index)
        layer.fill()
        return layer

    def opened(self, index: int) -> Layer:
        """Layer `index` without its tensors, so that something may stand in for its parts."""
        model, whole = self._hollow
        return Layer(
            model, self.stack(model), self.layers(model), index, whole[index], self._tensors
        )

    @cached_property
    def _hollow(self) -> tuple[Any, list[nn.Module]]:
        """A model with stand-ins for its layers, and the layers, none of which has tensors."""
        model = self.empty()
        self._tensors.fill(model, self.stack(model), deep=False)
        return model, self._emptied(model)

    def _emptied(self, model: Any) -> list[nn.Module]:
        layers = self.layers(model)
        whole = list(layers)
        for i in range(len(layers)):
            layers[i] = _Passing()
        return whole

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """What enters the first layer, `[T, C]`, for token ids."""
        model = self.empty()
        self._tensors.fill(model, self.stack(model), deep=False)
        self._emptied(model)
        table = model.get_input_embeddings()
        table.weight = parameter(self._tensors.rows(model, table, ids))
        self.fill_embeddings(model)
        first, tokens = self.layers(model)[0], torch.arange(len(ids))[None]
        entered, _ = until(first, self.stack(model), input_ids=tokens)
        rows: FloatArray = entered[0][0].numpy()
        return rows

    def fill_embeddings(self, model: Any) -> None:
        """Read what tokens go through besides the table."""

    def head(self, start: int, end: int) -> Run:
        """Logits `[T, end - start]` of some tokens, for what leaves the last layer."""
        model = self.empty()
        self._tensors.fill(model, self.stack(model), deep=False)
        self._emptied(model)
        norm, head = self.stack(model).norm, model.get_output_embeddings()
        self._tensors.fill(model, norm)
        head.weight = parameter(self._tensors.rows(model, head, range(start, end)))
        # What is embedded does not matter, for nothing of it reaches the norm.
        table = model.get_input_embeddings()
        table.weight = parameter(torch.zeros(1, table.weight.shape[1]))

        def logits(hidden: FloatArray) -> FloatArray:
            ids = torch.zeros(1, len(hidden), dtype=torch.long)
            with _entering(norm, _batch(hidden)):
                rows: FloatArray = model(input_ids=ids, use_cache=False).logits[0].numpy()
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
        self._tensors.meet(model)
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
    """Whole layers, some of which may be mixtures of experts."""

    def routed(self, index: int) -> Choices:
        """Experts that each position chooses, the one of the largest weight first."""
        layer, experts = self._routing(index)

        def tell(hidden: FloatArray) -> Routes:
            _, which, weights = layer.entered(hidden, experts)
            return chosen(which, weights)

        return partial(each, tell)

    def undecided(self, index: int) -> Rows:
        """Positions at which fp16 cannot tell which experts are chosen."""
        layer, _ = self._routing(index)
        gate = layer.module.mlp.gate

        def tell(hidden: FloatArray) -> tuple[int, ...]:
            (entered,) = layer.entered(hidden, gate)
            close = close_choices(entered.reshape(-1, entered.shape[-1]), gate.weight, gate.top_k)
            return rows_of(close)

        return partial(each, tell)

    def _routing(self, index: int) -> tuple[Layer, Given]:
        """A layer whose experts are not read."""
        layer = self.opened(index)
        experts = layer.module.mlp.experts = Given(None)
        layer.fill()
        return layer, experts


class Layer:
    """One layer in an otherwise hollow model, where it is put while it is filled or run.

    Attributes:
        module: a copy of transformers' layer.
        stack: the model without its head.
    """

    def __init__(
        self,
        model: Any,
        stack: Any,
        layers: nn.ModuleList,
        index: int,
        module: nn.Module,
        tensors: Tensors,
    ) -> None:
        self.module: Any = deepcopy(module)
        self._model, self.stack, self._layers, self._index = model, stack, layers, index
        self._tensors = tensors

    def only(self, *names: str) -> None:
        """Leave out all parts but these, which are the ones that are run."""
        for name, part in list(self.module.named_children()):
            if name not in names and part.state_dict():
                setattr(self.module, name, Through())

    def fill(self) -> None:
        """Read the tensors that the layer still lacks."""
        with self._placed():
            self._tensors.fill(self._model, self.module)

    def fill_experts(self, experts: Any) -> None:
        """Have experts be read one by one, whenever one is asked for."""
        with self._placed():
            self._tensors.fill_experts(self._model, experts)

    def run(self, sequences: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs for hidden states `[T, C]`."""
        return each(lambda hidden: self.given(hidden, self.module)[0], sequences)

    def given(self, hidden: FloatArray, module: nn.Module, **more: Any) -> list[FloatArray]:
        """All that a module gives within the layer, `[T, ...]` each.

        `more` is what the layer takes besides hidden states.
        """
        _, out = self.taken(hidden, module, **more)
        return [_rows(each) for each in (out if isinstance(out, tuple) else (out,))]

    def entered(self, hidden: FloatArray, module: nn.Module) -> list[Tensor]:
        """All that enters a module within the layer."""
        return self.taken(hidden, module)[0]

    def taken(self, hidden: FloatArray, module: nn.Module, **more: Any) -> tuple[list[Any], Any]:
        """What enters a module within the layer, in order, and what it gives."""
        return self._until(module, hidden, more)

    def keys_and_values(self, hidden: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What the layer keeps of `[T, C]`, `[KV, T, d]` each."""
        from transformers import DynamicCache

        cache = DynamicCache()
        self._until(self.module.self_attn, hidden, {}, past_key_values=cache, use_cache=True)
        kept = next(layer for layer in cache.layers if layer.is_initialized)
        return kept.keys[0].numpy(), kept.values[0].numpy()

    def _until(
        self, module: nn.Module, hidden: FloatArray, more: Mapping[str, Any], **named: Any
    ) -> tuple[list[Any], Any]:
        x = _batch(hidden)
        with self._placed(), _entering(self.module, x, **more):
            return until(module, self.stack, inputs_embeds=x, **named)

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
    try:
        with torch.inference_mode(), suppress(_Done):
            stack(**{"use_cache": False, **named})
    finally:
        hook.remove()
    entered, out = found
    return entered, out


class Given(nn.Module):
    """Stands in for a module: gives the same, whatever it gets."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *args: Any, **named: Any) -> Any:
        """The value."""
        return self.value


class Through(nn.Identity):
    """Stands in for a module: gives what it gets. Layers look at the dtype of norms' weights."""

    weight = torch.zeros(())


class _Passing(nn.Module):
    """Stands in for a layer: gives what it gets."""

    def forward(self, hidden_states: Tensor, *rest: Any, **named: Any) -> Any:
        return (hidden_states, *rest) if rest else hidden_states


class _Done(Exception):
    """Ends a run: what it was for is there."""


@contextmanager
def _entering(module: nn.Module, x: Tensor, **more: Any) -> Iterator[None]:
    """Have `x` enter a module in place of what comes."""

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return (x,), {k: v for k, v in kwargs.items() if k != "hidden_states"} | more

    hook = module.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with torch.inference_mode():
            yield
    finally:
        hook.remove()


def _batch(hidden: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(hidden))[None]


def _rows(given: Tensor) -> FloatArray:
    rows: FloatArray = (given[0] if given.ndim > 2 else given).numpy()
    return rows


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
