"""Compression of an uncompressed Core ML model as the manifest asks, weight by weight."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytest_ane.build.kmeans import palette
from pytest_ane.build.quiet import converter_notes, import_coremltools
from pytest_ane.errors import BuildError
from pytest_ane.manifest import Compression, Linear, Palettize, Uncompressed


def compress(model: Any, compression: Compression, subject: str) -> tuple[Any, tuple[str, ...]]:
    """Palettize and quantize a converted model's weights through `coremltools.optimize.coreml`.

    Returns:
        The compressed model, and what coremltools noted, such as a weight it declined.

    Raises:
        BuildError: coremltools refuses a setting.
    """
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        names = list(cto.get_weights_metadata(model, weight_threshold=0))
    asked = {name: compression.for_weight(name) for name in names}
    notes: list[str] = []
    try:
        for kind, apply in (
            (Palettize, cto.palettize_weights),
            (Linear, cto.linear_quantize_weights),
        ):
            configs = {
                name: _config(cto, method) for name, method in asked.items() if type(method) is kind
            }
            if not configs:
                continue
            with converter_notes() as lines:
                model = apply(model, cto.OptimizationConfig(op_name_configs=configs))
            notes += lines
    except (ValueError, TypeError, RuntimeError) as error:
        raise BuildError(f"{subject} could not be compressed: {error}") from error
    return model, tuple(notes)


def _config(cto: Any, method: Palettize | Linear | Uncompressed) -> Any:
    if isinstance(method, Linear):
        block = {"block_size": method.block_size} if method.granularity == "per_block" else {}
        return cto.OpLinearQuantizerConfig(
            mode=method.mode,
            dtype=method.dtype,
            granularity=method.granularity,
            weight_threshold=method.weight_threshold,
            **block,
        )
    assert isinstance(method, Palettize)
    options = {
        "granularity": method.granularity,
        "group_size": method.group_size,
        "weight_threshold": method.weight_threshold,
        "enable_per_channel_scale": method.enable_per_channel_scale,
    }
    if method.mode == "kmeans" and method.engine == "fast" and method.cluster_dim == 1:
        # coremltools' own k-means takes 45 s for a block of 3.5 M weights at 8 bits, this 0.5 s.
        return cto.OpPalettizerConfig(
            mode="custom", lut_function=partial(palette, nbits=method.nbits), **options
        )
    nbits = None if method.mode == "unique" else method.nbits
    return cto.OpPalettizerConfig(
        mode=method.mode, nbits=nbits, cluster_dim=method.cluster_dim, **options
    )
