"""The compression that a package's weights show, as a manifest's table would ask for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from pytest_ane.manifest import Compression, read_compression
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.census import ProgramWeight, Stage, constants_of, find_weights
from pytest_ane.mlprogram.records import MLModel

_SMALL = 2048
"""The manifest's default `weight_threshold`."""


def claim(model: MLModel) -> Compression | None:
    """A compression that may have made a package; None where no single step makes its weights.

    The settings of most weights are the table's, others are overrides. What is large and stays
    uncompressed is kept. Nobody can see how tables were found: those of even steps are taken for
    `uniform`, others for `kmeans`.
    """
    weights = list(find_weights(model))
    found = {each.weight.name: _settings(model, each) for each in weights if each.weight.stages}
    if not found or not all(found.values()):
        return None
    least = min(w.weight.elements for w in weights if w.weight.stages)
    threshold = min(_SMALL, least - 1)
    common = dict(Counter(tuple(s.items()) for s in found.values() if s).most_common(1)[0][0])
    plain = (w.weight for w in weights if not w.weight.stages and w.weight.elements > threshold)
    others = [
        {"weights": name, **settings}
        for name, settings in found.items()
        if settings and settings != common
    ]
    table: dict[str, Any] = {**common, "keep": sorted({weight.name for weight in plain})}
    if threshold < _SMALL:
        table["weight_threshold"] = threshold
    return read_compression({**table, "overrides": others})


def _settings(model: MLModel, each: ProgramWeight) -> dict[str, Any] | None:
    """The settings of one compressed weight; None where several steps made it."""
    weight = each.weight
    if len(weight.stages) != 1 or weight.sparsity:
        return None
    [stage] = weight.stages
    if stage.is_palette:
        return _palettes(model, each, stage)
    if not stage.is_quantization or stage.nbits not in (4, 8):
        return None
    table: dict[str, Any] = {"method": "linear", "dtype": f"int{stage.nbits}"}
    if stage.count == 1:
        return table | {"granularity": "per_tensor"}
    if stage.blocks == 1 or stage.groups == 1:
        return table | {"granularity": "per_channel"}
    return table | {"granularity": "per_block", "block_size": weight.shape[1] // stage.blocks}


def _palettes(model: MLModel, each: ProgramWeight, stage: Stage) -> dict[str, Any] | None:
    lut = constants_of(each.operation, each.producers).get("lut")
    if lut is None or stage.vector > 1 or stage.nbits not in (1, 2, 3, 4, 6, 8):
        return None
    values = load(model, lut).astype(np.float64)
    even = _is_even(values.reshape(stage.count, -1))
    table = {"method": "palettize", "mode": "uniform" if even else "kmeans", "nbits": stage.nbits}
    if stage.count == 1:
        return table | {"granularity": "per_tensor"}
    axis = 0 if stage.groups > 1 else int(np.argmax(values.shape[: len(each.weight.shape)]))
    size = each.weight.shape[axis] // stage.count
    return table | {"granularity": "per_grouped_channel", "group_size": size}


def _is_even(tables: Any) -> bool:
    """Whether the values of every table lie in even steps, but for rounding to fp16."""
    steps = np.diff(tables, axis=1)
    rounding = 2.0**-10 * np.abs(tables).max(axis=1) + 2.0**-23
    return tables.shape[1] > 2 and bool((np.ptp(steps, axis=1) <= 2 * rounding).all())
