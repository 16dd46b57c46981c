"""How a family's reading of its files is put wrong: what is converted, embedded and laid out.

The reference reads the same files by transformers and never sees it. A reading that asks for a
tensor, or for a shape, that the file has not is refused when the shard is opened and is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import asdict, replace
from math import log
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.families.decoder import _forms as decoder_forms
from pytest_ane.models.families.decoder._config import DecoderConfig, Layer
from pytest_ane.models.families.decoder._forms import AttentionWeights, Linear
from pytest_ane.models.families.gemma4 import _forms
from pytest_ane.models.families.zaya._forms import AttentionWeights as ConvolvedWeights
from tests.battery.fault import Modules, Put
from tests.models.families.rotary import plain_rotary

Reader = Callable[[Any], Any]
"""Another reader of weights in place of the family's."""


def read(change: Callable[[Any], Mapping[str, Any]]) -> Put:
    """Other fields of the configuration."""

    def put(model: Any, _: Modules) -> Any:
        wrong = copy(model)
        wrong.config = replace(model.config, **change(model.config))
        wrong.description = asdict(wrong.config)
        assert wrong.config != model.config, "nothing is read otherwise"
        return wrong

    return put


def set_to(**fields: Any) -> Put:
    """Other values, whatever the file has."""
    return read(lambda c: fields)


def layers(change: Callable[[Layer], Layer]) -> Put:
    """Every layer otherwise."""
    return read(lambda c: {"layers": tuple(map(change, c.layers))})


def windows(change: Callable[[int | None], int | None]) -> Put:
    """The window of every layer otherwise."""
    return layers(lambda layer: replace(layer, window=change(layer.window)))


def mixture(**fields: Any) -> Put:
    """The mixture otherwise; a number is added to the file's."""
    return read(lambda c: {"mixture": replace(c.mixture, **fields)})


def angles(change: Callable[[Rotary], Rotary]) -> Put:
    """All angles otherwise."""
    return read(lambda c: {"rotaries": tuple(map(change, c.rotaries))})


def based(factor: float) -> Put:
    """The base times `factor`: theta^(-i / n) of n pairs."""

    def change(rotary: Rotary) -> Rotary:
        count = len(rotary.frequencies)
        turned = (f * factor ** (-i / count) for i, f in enumerate(rotary.frequencies))
        return replace(rotary, frequencies=tuple(turned))

    return angles(change)


def faster(factor: float) -> Put:
    """All pairs turn so many times faster, as without linear scaling, or with it."""
    return angles(lambda r: replace(r, frequencies=tuple(f * factor for f in r.frequencies)))


def unscaled(theta: float) -> Put:
    """The plain angles of a base in place of scaled ones."""
    return angles(lambda r: plain_rotary(r.channels, theta))


def halved(rotary: Rotary) -> Rotary:
    """Of half the channels: theta^(-2i / (d / 2))."""
    return replace(rotary, frequencies=rotary.frequencies[::2])


def doubled(rotary: Rotary) -> Rotary:
    """Of twice the channels, by the base that the plain angles have."""
    count = len(rotary.frequencies)
    theta = rotary.frequencies[1] ** -count
    assert log(theta) > 0
    return plain_rotary(2 * rotary.channels, theta)


def heads(factor: int) -> Put:
    """`factor` times as many heads, each of so much fewer channels, or the other way if below 0."""

    def change(c: DecoderConfig) -> Mapping[str, Any]:
        more, fewer = (factor, 1) if factor > 0 else (1, -factor)
        head = c.head * fewer // more
        turned = halved if factor > 0 else doubled
        return {
            "heads": c.heads * more // fewer,
            "kv_heads": c.kv_heads * more // fewer,
            "head": head,
            "scale": head**-0.5,
            "rotaries": tuple(map(turned, c.rotaries)),
        }

    return read(change)


def named(change: Callable[[Any], Mapping[str, Any]]) -> Put:
    """Tensors are looked up, or taken, otherwise."""

    def put(model: Any, _: Modules) -> Any:
        wrong = copy(model)
        wrong.names = replace(model.names, **change(model.names))
        assert wrong.names != model.names, "nothing is read otherwise"
        return wrong

    return put


def exchanged(first: str, second: str) -> Put:
    """Two parts by one another's names."""
    return named(lambda n: {"parts": {**n.parts, first: n.parts[second], second: n.parts[first]}})


def weights(change: Callable[[Any, str, int], Any]) -> Put:
    """`change(weights, method, index)` is what the reader gives of an attention, block or head."""

    def put(model: Any, _: Modules) -> Any:
        wrong = copy(model)
        wrong._weights = lambda dtype: _Weights(model._weights(dtype), change)
        return wrong

    return put


_METHODS = ("attention", "block", "head", "router", "mixture", "cca")


class _Weights:
    def __init__(self, right: Any, change: Callable[[Any, str, int], Any]) -> None:
        self._right, self._change = right, change

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            return getattr(self._right, name)
        return lambda index: self._change(self._right, name, index)


def parts(change: Callable[[Any, Any], Any]) -> Put:
    """`change(configuration, weights)` of every attention, block, mixture or head."""
    return weights(lambda right, name, index: change(right.config, getattr(right, name)(index)))


def tiled(c: Any, w: Any) -> Any:
    """Query head h has the keys of h modulo their number, where each group has keys of its own."""
    if isinstance(w, ConvolvedWeights):
        return _tiled_convolved(c, w)
    if not isinstance(w, AttentionWeights):
        return w
    kv_heads = len(w.k.weight) * c.heads // len(w.q.weight)
    order = _order(c.heads, kv_heads)
    return replace(w, q=_rows(w.q, c.heads, order), o=Linear(_columns(w.o.weight, order), w.o.bias))


def _tiled_convolved(c: Any, w: ConvolvedWeights) -> ConvolvedWeights:
    """ZAYA's: queries are the first rows of the projection and of both convolutions."""
    order, count = _order(c.heads, c.kv_heads), c.q_channels

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([_mixed(x[:count], c.heads, order), x[count:]])

    assert w.convolutions is not None
    convolved = [Linear(mixed(each.weight), mixed(each.bias)) for each in w.convolutions]  # type: ignore[arg-type]
    return replace(
        w, qkv=mixed(w.qkv), convolutions=(convolved[0], convolved[1]), o=_columns(w.o, order)
    )


def _order(heads: int, kv_heads: int) -> torch.Tensor:
    order = torch.arange(heads).reshape(-1, kv_heads).T.reshape(-1)
    assert order.tolist() != list(range(heads)), "one group, or one head in each"
    return order


def _mixed(x: torch.Tensor, heads: int, order: torch.Tensor) -> torch.Tensor:
    return x.reshape(heads, -1, *x.shape[1:])[order].reshape(x.shape)


def _rows(w: Linear, heads: int, order: torch.Tensor) -> Linear:
    bias = None if w.bias is None else _mixed(w.bias, heads, order)
    return Linear(_mixed(w.weight, heads, order), bias)


def _columns(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return x.reshape(len(x), len(order), -1)[:, order].reshape(x.shape)


def converted(wrong: Put) -> Put:
    """A fault of the torch module that is converted."""

    def put(model: Any, _: Modules) -> Any:
        faulty = copy(model)

        def conversion(shard: str) -> Any:
            right = model.conversion(shard)
            wrong(right.module, _)
            return right

        faulty.conversion = conversion
        return faulty

    return put


def rectified(part: Any, _: Modules) -> None:
    """ReLU in the one place where a decoder's converted form has its activation."""
    right = type(part)

    def forward(self: Any, *inputs: Any) -> Any:
        relu = lambda x, activation: functional.relu(x)  # noqa: E731
        with (
            mock.patch.object(decoder_forms, "activated", relu),
            mock.patch.object(_forms, "activated", relu),
        ):
            return right.forward(self, *inputs)

    part.__class__ = type(right.__name__, (right,), {"forward": forward})


def embedded(change: Callable[[Any, list[int]], Any]) -> Put:
    """`change(model, ids)` is what the host gives the first shard."""

    def put(model: Any, _: Modules) -> Any:
        wrong = copy(model)
        wrong.embed = lambda ids: change(model, list(ids))
        return wrong

    return put
