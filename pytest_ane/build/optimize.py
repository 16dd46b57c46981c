"""The manifest's compression in coremltools' terms: its passes, in order, with their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.build.palettize import palette
from pytest_ane.build.percentile import exact_percentiles
from pytest_ane.manifest import LinearStep, PalettizeStep, PruneStep, Settings, Step

Array = npt.NDArray[Any]

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


def passes(cto: Any, asked: Mapping[str, Settings]) -> Iterator[Pass]:
    """The calls that do what is asked for each weight: all first steps, then all second ones.

    Args:
        cto: the module `coremltools.optimize.coreml`.
        asked: settings by weight name.
    """
    kinds = {
        PruneStep: cto.prune_weights,
        PalettizeStep: cto.palettize_weights,
        LinearStep: cto.linear_quantize_weights,
    }
    for turn in range(max((len(settings.steps) for settings in asked.values()), default=0)):
        now = {n: s.steps[turn] for n, s in asked.items() if turn < len(s.steps)}
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
    given = step.model_dump(include=set(PruneStep.model_fields) - {"method"}, exclude_none=True)
    if step.threshold is not None:
        floats = {"threshold": float(step.threshold)}
        if step.minimum_sparsity_percentile is not None:
            floats["minimum_sparsity_percentile"] = float(step.minimum_sparsity_percentile)
        return cto.OpThresholdPrunerConfig(**given | floats)
    if step.target_sparsity is not None:
        given["target_sparsity"] = float(step.target_sparsity)
    return cto.OpMagnitudePrunerConfig(**given)


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
    lut, indices = palette(weights, nbits)
    if weights.dtype.kind in "iu":
        lut = np.rint(lut).astype(weights.dtype)
    return lut, indices
