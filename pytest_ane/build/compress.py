"""Compression of an uncompressed Core ML model as the manifest asks, weight by weight.

Scalar palettes are made on disk by `palettize`, from the saved package; all else goes before that
through coremltools, on the model in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeGuard

from pytest_ane.build.palettize import constants, palette, palettize
from pytest_ane.build.quiet import converter_notes, import_coremltools
from pytest_ane.errors import BuildError
from pytest_ane.manifest import Compression, Linear, Palettize, Uncompressed

Method: TypeAlias = Palettize | Linear | Uncompressed


def compress(model: Any, compression: Compression, package: Path, subject: str) -> tuple[str, ...]:
    """Compress a converted model's weights and save it as `package`.

    Returns:
        What was noted, such as a weight that was declined.

    Raises:
        BuildError: a setting is refused, or a weight cannot be compressed.
    """
    notes: tuple[str, ...] = ()
    if not all(_fast(method) or isinstance(method, Uncompressed) for method in compression.every()):
        model, notes = _through_coremltools(model, compression, subject)
    with TemporaryDirectory(dir=package.parent) as folder:
        saved = Path(folder, package.name)
        with converter_notes():
            model.save(str(saved))
        asked = {name: compression.for_weight(name) for name in constants(saved)}
        if settings := {name: method for name, method in asked.items() if _fast(method)}:
            return notes + palettize(saved, package, settings)
        saved.replace(package)
    return notes


def _fast(method: Method) -> TypeGuard[Palettize]:
    """Whether our own engine makes it."""
    return (
        isinstance(method, Palettize)
        and method.engine == "fast"
        and method.cluster_dim == 1
        and not method.enable_per_channel_scale
    )


def _through_coremltools(
    model: Any, compression: Compression, subject: str
) -> tuple[Any, tuple[str, ...]]:
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        names = list(cto.get_weights_metadata(model, weight_threshold=0))
    asked = {name: compression.for_weight(name) for name in names}
    notes: list[str] = []
    try:
        for apply, configs in _passes(cto, asked):
            with converter_notes() as lines:
                model = apply(model, cto.OptimizationConfig(op_name_configs=configs))
            notes += lines
    except (ValueError, TypeError, RuntimeError) as error:
        raise BuildError(f"{subject} could not be compressed: {error}") from error
    return model, tuple(notes)


def _passes(cto: Any, asked: Mapping[str, Method]) -> list[tuple[Any, dict[str, Any]]]:
    """The calls that do what is asked and is not left to our own engine."""
    kinds = {Palettize: cto.palettize_weights, Linear: cto.linear_quantize_weights}
    passes = [
        (apply, {n: _config(cto, m) for n, m in asked.items() if type(m) is kind and not _fast(m)})
        for kind, apply in kinds.items()
    ]
    return [(apply, configs) for apply, configs in passes if configs]


def _config(cto: Any, method: Method) -> Any:
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
        return cto.OpPalettizerConfig(
            mode="custom", lut_function=partial(palette, nbits=method.nbits), **options
        )
    nbits = None if method.mode == "unique" else method.nbits
    return cto.OpPalettizerConfig(
        mode=method.mode, nbits=nbits, cluster_dim=method.cluster_dim, **options
    )
