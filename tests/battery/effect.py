"""What a fault changes: relative L2 of the contribution between a faulty and the right module."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import LanguageModel, Layout, optional
from tests.battery.fault import Fault

EFFECT = 0.01
"""A fault changes a contribution by more, at some position of some probe."""
HARMLESS = 0.002
"""A benign rewriting changes none by more."""
_LENGTHS = (1, 2, 3, 5, 8, 4, 1, 16, 20, 33, 48, 64, 7)
_SIZES = (400.0, 4000.0, 20000.0)


@dataclass(frozen=True)
class Probe:
    """Calls of one sequence, `(hidden [T, C], start)`; `massive` is a channel that is left out."""

    calls: tuple[tuple[FloatArray, int], ...]
    massive: int | None = None


def every_probe(layout: Layout, max_tokens: int, context: int) -> list[Probe]:
    """Every place where a fault may hide: all T, the whole context, written again, large values."""
    rng = np.random.default_rng(5)
    stateful, width = layout.sees == "state", layout.width

    def states(length: int, spread: float = 0.0) -> FloatArray:
        scale = np.exp(spread * rng.standard_normal(width))
        return (rng.standard_normal((length, width)) * scale).astype(np.float32)

    def massive(size: float) -> FloatArray:
        x = states(min(8, max_tokens))
        x[:, width // 3] = size
        return x

    given = [Probe(((massive(size), 0),), width // 3) for size in _SIZES]
    given += [Probe(((states(t, 0.5), 0),)) for t in sorted({1, 2, 3, 4, max_tokens})]
    if stateful:
        given.append(Probe(tuple(_ragged(states(context, 0.3), max_tokens))))
        first, again = states(12), states(10)
        calls = [(first[i : i + 3], i) for i in range(0, 12, 3)]
        given.append(Probe((*calls, *((again[i : i + 2], 6 + i) for i in range(0, 10, 2)))))
    return given


def _ragged(x: FloatArray, most: int) -> Iterator[tuple[FloatArray, int]]:
    start, i = 0, 0
    while start < len(x):
        length = min(_LENGTHS[i % len(_LENGTHS)], most, len(x) - start)
        yield x[start : start + length], start
        start, i = start + length, i + 1


def run(
    module: nn.Module, layout: Layout, probe: Probe, dtype: torch.dtype, names: Sequence[str] = ()
) -> FloatArray:
    """The outputs `[positions, C]` of all calls of a probe, from empty states; by named inputs."""
    for buffer in _states(module):
        buffer.zero_()
    rows = []
    with torch.inference_mode():
        for hidden, start in probe.calls:
            inputs = layout.inputs(hidden, start)
            taken = (inputs[name] for name in names or inputs)
            y = module(*(torch.from_numpy(np.array(x)).to(dtype) for x in taken))
            rows.append(layout.output({"y": y.float().numpy()})[: len(hidden)])  # Without padding.
    return np.concatenate(rows)


def _states(module: nn.Module) -> Iterator[torch.Tensor]:
    names = ("k_cache", "v_cache", "kv_cache", "tail")
    yield from (b for name, b in module.named_buffers() if name in names)


class Effects:
    """A shard's right outputs for all probes, and how far a fault is from them."""

    def __init__(self, model: LanguageModel, shard: str, given: Sequence[Probe]) -> None:
        self._model, self._shard, self._given = model, shard, given
        self._layout = model.layout(shard)
        residual, right = (
            optional(model, "residual", shard),
            _as(self._module(shard), torch.float32),
        )
        self._expected, self._added, self._kept = [], [], []
        self._names = [port.name for port in model.conversion(shard).inputs]
        for probe in given:
            expected = run(right, self._layout, probe, torch.float32, self._names)
            rows = np.concatenate([hidden for hidden, _ in probe.calls])
            self._expected.append(expected)
            self._added.append(expected if residual is None else expected - residual([rows])[0])
            left_out = -1 if residual is None else probe.massive
            self._kept.append(np.arange(expected.shape[1]) != left_out)

    def _module(self, shard: str) -> Any:
        return self._model.conversion(shard).module

    def of(self, fault: Fault) -> float:
        """The largest relative L2 difference of a contribution at a position.

        Infinite for NaN, and for what is neither in the module nor on the host's side.
        """
        if fault.place not in ("module", "host", "reading"):
            return math.inf
        wrong, layout, names = self._module(self._shard), self._layout, self._names
        if fault.place == "reading":
            model = fault.put(self._model, self._module)
            conversion, layout = model.conversion(self._shard), model.layout(self._shard)
            wrong, names = conversion.module, [port.name for port in conversion.inputs]
        elif fault.place == "host":
            layout = fault.put(layout, self._module)
        else:
            fault.put(wrong, self._module)
        dtype = torch.float16 if fault.fp16 else torch.float32
        wrong = _as(wrong, dtype)
        outputs = (run(wrong, layout, probe, dtype, names) for probe in self._given)
        return max(map(_difference, outputs, self._expected, self._added, self._kept))


def _difference(
    actual: FloatArray, expected: FloatArray, added: FloatArray, kept: npt.NDArray[Any]
) -> float:
    if actual.shape != expected.shape:
        return math.inf
    size = np.linalg.norm(added[:, kept], axis=1)
    error = np.linalg.norm((actual - expected)[:, kept], axis=1)
    idle = size <= 1e-3 * size.max(initial=0.0)
    if not np.isfinite(error).all() or (error[idle] > 1e-3 * size.max(initial=0.0)).any():
        return math.inf
    return float((error[~idle] / size[~idle]).max(initial=0.0))


def _as(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.to(dtype).eval()
