"""Faults of the host's side: what a right package is given; and of the references themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families._layout import MASKED, AneLayout, causal_mask, write_mask
from tests.battery.fault import Fault, Modules, Put, unique

_BLOCKS = ("smollm2:L01", "smollm2:L15")
_ATTENTION = ("gemma4:L00.attn",)


class FaultyLayout:
    """A layout whose inputs are changed: `change(inputs, start, layout)`."""

    def __init__(self, layout: AneLayout, change: Callable[..., dict[str, Any]]) -> None:
        self._layout, self._change = layout, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)

    def inputs(self, hidden: FloatArray, start: int = 0, *more: Any) -> dict[str, Any]:
        """The right inputs, then what the fault makes of them."""
        given = dict(self._layout.inputs(hidden, start, *more))
        return {**given, **self._change(given, start, self._layout)}


def _host(
    name: str, what: str, change: Callable[..., dict[str, Any]], shards: tuple[str, ...] = _BLOCKS,
    **more: Any,
) -> Fault:  # fmt: skip
    return Fault(name, "host", what, _laid(change), shards, "host", **more)


def _laid(change: Callable[..., dict[str, Any]]) -> Put:
    def put(layout: AneLayout, _: Modules) -> FaultyLayout:
        return FaultyLayout(layout, change)

    return put


def masks(factor: float) -> Put:
    """The host's mask, larger by a factor."""
    return _laid(lambda given, start, layout: {"mask": given["mask"] * np.float32(factor)})


def _angles(position: Callable[[Any], Any] = lambda p: p, theta: float = 1.0) -> Callable[..., Any]:
    """Tables of other positions, or of another base."""

    def change(given: dict[str, Any], start: int, layout: AneLayout) -> dict[str, Any]:
        rotary, length = layout.rotary, given["x"].shape[2]
        assert rotary is not None
        count = len(rotary.frequencies)
        slower = (f * theta ** (-i / count) for i, f in enumerate(rotary.frequencies))
        rotary = replace(rotary, frequencies=tuple(slower))
        cos, sin = rotary.tables(4096)
        places = position(np.arange(start, start + length))
        return {"cos": cos[places].T[None, None], "sin": sin[places].T[None, None]}

    return change


def _half_angles(given: dict[str, Any], start: int, layout: AneLayout) -> dict[str, Any]:
    """Angles computed in fp16, whose steps are 1/8 at 128 to 256."""
    rotary, length = layout.rotary, given["x"].shape[2]
    assert rotary is not None
    frequency = np.tile(rotary.frequencies, 2)
    angle = np.outer(np.arange(start, start + length), frequency).astype(np.float16)
    wide = angle.astype(np.float32)
    return {"cos": np.cos(wide).T[None, None], "sin": np.sin(wide).T[None, None]}


def _mask(make: Callable[[int, int, int, int | None], FloatArray]) -> Callable[..., Any]:
    """Another mask, of T, start, S and window."""

    def change(given: dict[str, Any], start: int, layout: AneLayout) -> dict[str, Any]:
        context = layout.context or 0
        mask = make(given["x"].shape[2], start, context, layout.window)
        return {"mask": mask[None, None].astype(np.float32)}

    return change


def _write(make: Callable[[int, int, int], FloatArray]) -> Callable[..., Any]:
    """Another one-hot `write`, of T, start and S."""

    def change(given: dict[str, Any], start: int, layout: AneLayout) -> dict[str, Any]:
        return {"write": make(given["x"].shape[2], start, layout.context or 0)}

    return change


def _last_column(length: int, start: int, context: int) -> FloatArray:
    mask = write_mask(length, start, context)
    mask[:, :, :-1] = 0
    return mask


HOST = [
    _host("host-start", "angles begin at 0 in every call", _angles(lambda p: p - p[0])),
    _host("host-half-speed", "positions count half", _angles(lambda p: p // 2)),
    _host("host-wrap-128", "positions wrap at 128", _angles(lambda p: p % 128)),
    _host("host-wrap-240", "positions wrap at 240", _angles(lambda p: p % 240)),
    _host("host-theta", "theta is a tenth", _angles(theta=0.1)),
    _host("host-theta-2", "theta is doubled", _angles(theta=2.0)),
    _host("host-angles-fp16", "angles are computed in fp16", _half_angles,
          equivalent={"tiny": "its two frequencies are exact or slow"}),
    _host("host-interleaved", "tables are for adjacent pairs",
          lambda given, start, layout: {n: _interleaved(given[n]) for n in ("cos", "sin")}),
    _host("host-exchanged", "sine and cosine are exchanged",
          lambda given, start, layout: {"cos": given["sin"], "sin": given["cos"]}),
    _host("host-mask-start", "the mask ignores where the call starts",
          _mask(lambda t, start, s, w: causal_mask(t, 0, s, w))),
    _host("host-mask-none", "the mask hides nothing",
          _mask(lambda t, start, s, w: np.zeros((t, s)))),
    _host("host-mask-later", "the mask hides the position itself",
          _mask(lambda t, start, s, w: causal_mask(t, start - 1, s, w))),
    _host("host-mask-next", "the mask shows one position more",
          _mask(lambda t, start, s, w: causal_mask(t, start + 1, s, w))),
    _host("host-mask-weak", "the mask is -4",
          _mask(lambda t, start, s, w: causal_mask(t, start, s, w) * (4 / -MASKED))),
    _host("host-write-start", "writing begins at slot 0 in every call",
          _write(lambda t, start, s: write_mask(t, 0, s))),
    _host("host-write-last", "only the last position of a call is written",
          _write(_last_column)),
    _host("host-write-none", "nothing is written",
          _write(lambda t, start, s: write_mask(t, start, s) * 0)),
    _host("host-window-none", "no window", _mask(lambda t, start, s, w: causal_mask(t, start, s)),
          _ATTENTION),
    _host("host-window-less", "the window is one position shorter",
          _mask(lambda t, start, s, w: causal_mask(t, start, s, (w or 0) - 1)), _ATTENTION),
    _host("host-window-half", "the window is half",
          _mask(lambda t, start, s, w: causal_mask(t, start, s, (w or 0) // 2)), _ATTENTION),
]  # fmt: skip


def _interleaved(table: FloatArray) -> FloatArray:
    """Every angle twice in a row, in place of both halves alike."""
    half = table.shape[2] // 2
    return np.repeat(table[:, :, :half], 2, axis=2)


FAULTS = unique(HOST)
