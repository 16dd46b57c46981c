"""Faults that artifact and reference share: only what is known of the text can tell them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.families.decoder import _reference as weights
from tests.battery.fault import Fault, Modules, Put, unique

_SLOW = Rotary.plain(64, 1000.0)
_BLOCK, _HEAD = weights.Weights.block, weights.Weights.head


def _reading(name: str, replacement: Any, of: Any = weights.Weights) -> Put:
    """Another function in place of one that reads weights, for as long as the context lasts."""

    def put(model: Any, _: Modules) -> AbstractContextManager[Any]:
        return mock.patch.object(of, name, replacement)

    return put


def _blocks(change: Callable[[Any], Any], only: int | None = None) -> Put:
    def read(self: Any, index: int) -> Any:
        block = _BLOCK(self, index)
        return change(block) if only in (None, index) else block

    return _reading("block", read)


def _configured(**changes: Any) -> Put:
    def put(model: Any, _: Modules) -> AbstractContextManager[Any]:
        return mock.patch.object(model, "config", replace(model.config, **changes))

    return put


def _next_token(model: Any, _: Modules) -> AbstractContextManager[Any]:
    right = model.embed
    return mock.patch.object(model, "embed", lambda ids: right([i + 1 for i in ids]))


def _unnormed(self: Any, index: int) -> Any:
    right = _HEAD(self, index)
    return right._replace(norm=torch.ones_like(right.norm))


def _neighbour(self: Any, index: int) -> Any:
    return _BLOCK(self, max(index - 1, 0))


def _shrunk(b: Any) -> Any:
    return replace(b, down=b.down.scaled(0))


def _shared(name: str, what: str, put: Put) -> Fault:
    return Fault(name, "shared", what, put, ("smollm2",), "shared", "behaviour", "reference")


FAULTS = unique(
    [
        _shared(
            "shared-unpermute",
            "rows of queries and keys stay in the file's order",
            _reading("in_halves", lambda weight, heads: weight, of=weights),
        ),
        _shared("shared-theta", "theta is 1,000", _configured(rotaries=(_SLOW,))),
        _shared("shared-epsilon", "epsilon is 0.5", _configured(epsilon=0.5)),
        _shared("shared-neighbour", "every block has its neighbour's weights",
                _reading("block", _neighbour)),
        _shared("shared-gate-up", "gate and up are exchanged in every block",
                _blocks(lambda b: replace(b, gate=b.up, up=b.gate))),
        _shared("shared-block-dead", "block 0 adds nothing from its network",
                _blocks(_shrunk, only=0)),
        _shared("shared-token", "every token is read as the next one", _next_token),
        _shared("shared-final-norm", "the final norm has no weight", _reading("head", _unnormed)),
    ]
)  # fmt: skip
