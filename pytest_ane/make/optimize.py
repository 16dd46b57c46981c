"""The manifest's compression in coremltools' terms: its passes, in order, with their settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from pytest_ane.manifest import LinearStep, PalettizeStep, PruneStep, Settings, Step
from pytest_ane.mlprogram.arrays import Array

_SUFFIXES = ("_sparsified", "_palettized", "_quantized")
"""What the passes append to a weight's name, by which a later one finds it."""


@dataclass(frozen=True)
class Pass:
    """One call of coremltools.

    Attributes:
        apply: `coremltools.optimize.coreml.palettize_weights` or one of its like.
        configs: the settings of each weight, by name.
        joint: whether it compresses further what an earlier pass has compressed.
    """

    apply: Callable[..., Any]
    configs: Mapping[str, Any]
    joint: bool

    def run(self, model: Any, cto: Any) -> Any:
        """The model with the weights compressed."""
        config = cto.OptimizationConfig(op_name_configs=dict(self.configs))
        # Before iOS 18 the option itself is refused.
        option = {"joint_compression": True} if self.joint else {}
        with exact_percentiles():
            return self.apply(model, config, **option)


def passes(cto: Any, settings: Mapping[str, Settings]) -> Iterator[Pass]:
    """The calls that compress each weight by its settings: all first steps, then all second ones.

    Args:
        cto: the module `coremltools.optimize.coreml`.
        settings: by weight name.
    """
    kinds = {
        PruneStep: cto.prune_weights,
        PalettizeStep: cto.palettize_weights,
        LinearStep: cto.linear_quantize_weights,
    }
    for turn in range(max((len(each.steps) for each in settings.values()), default=0)):
        now = {n: s.steps[turn] for n, s in settings.items() if turn < len(s.steps)}
        for kind, apply in kinds.items():
            configs = {
                alias: _config(cto, step)
                for name, step in now.items()
                if isinstance(step, kind)
                for alias in _aliases(name, turn)
            }
            if configs:
                yield Pass(apply, configs, joint=turn > 0)


def _aliases(name: str, turn: int) -> Iterator[str]:
    """Names a weight may have after so many passes, of which any may have declined it."""
    for length in range(turn + 1):
        for suffixes in product(_SUFFIXES, repeat=length):
            yield name + "".join(suffixes)


def _config(cto: Any, step: Step) -> Any:
    if isinstance(step, PruneStep):
        return _pruner(cto, step)
    if isinstance(step, LinearStep):
        block = {"block_size": step.block_size} if step.granularity == "per_block" else {}
        return cto.OpLinearQuantizerConfig(
            mode=step.mode,
            dtype=step.dtype,
            granularity=step.granularity,
            weight_threshold=step.weight_threshold,
            **block,
        )
    return _palettizer(cto, step)


def _pruner(cto: Any, step: PruneStep) -> Any:
    options = step.model_dump(include=set(PruneStep.model_fields) - {"method"}, exclude_none=True)
    if step.threshold is not None:
        floats = {"threshold": float(step.threshold)}
        if step.minimum_sparsity_percentile is not None:
            floats["minimum_sparsity_percentile"] = float(step.minimum_sparsity_percentile)
        return cto.OpThresholdPrunerConfig(**options | floats)
    if step.target_sparsity is not None:
        options["target_sparsity"] = float(step.target_sparsity)
    return cto.OpMagnitudePrunerConfig(**options)


def _palettizer(cto: Any, step: PalettizeStep) -> Any:
    options = {
        "granularity": step.granularity,
        "group_size": step.group_size,
        "weight_threshold": step.weight_threshold,
        "enable_per_channel_scale": step.enable_per_channel_scale,
    }
    if step.mode == "kmeans" and step.engine == "fast" and step.cluster_dim == 1:
        return cto.OpPalettizerConfig(
            mode="custom", lut_function=partial(_palette, nbits=step.nbits), **options
        )
    nbits = None if step.mode == "unique" else step.nbits
    return cto.OpPalettizerConfig(
        mode=step.mode, nbits=nbits, cluster_dim=step.cluster_dim, **options
    )


def _palette(weights: Array, nbits: int) -> tuple[Array, Array]:
    """A k-means palette; of integers, which a joint pass palettizes, one of integers."""
    from pytest_ane.make.palettize.palettes import palette

    lut, indices = palette(weights, nbits)
    if weights.dtype.kind in "iu":
        lut = np.rint(lut).astype(weights.dtype)
    return lut, indices


@contextmanager
def exact_percentiles() -> Iterator[None]:
    """Let coremltools' passes, and nobody else, see a `numpy` whose percentile is exact.

    Pruning by magnitude then works for weights of any size. coremltools 9.0 asks `numpy.percentile`
    for the largest magnitude to set to zero. Of fp16 values numpy computes the position in fp16 as
    well (its issue 29003, there in 2.3): beyond 65,504 elements that overflows, the answer is NaN,
    and the whole weight is stored unpruned, in the sparse form.
    """
    import coremltools.optimize.coreml._quantization_passes as passes

    numpy = SimpleNamespace(**{**vars(np), "percentile": percentile})
    with patch.object(passes, "np", numpy):
        yield


def percentile(values: Array, q: float) -> Any:
    """The value below which, itself included, at least `q` percent of the values lie.

    Where numpy interpolates between two values this is the lower one, so that just as many values
    are at most as large.
    """
    flat = values.ravel()
    position = math.floor((flat.size - 1) * q / 100)
    return np.partition(flat, position)[position]
