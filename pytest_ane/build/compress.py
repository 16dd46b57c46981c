"""Compression of an uncompressed Core ML model as the manifest asks, weight by weight.

Scalar palettes are made on disk by `palettize`, from the saved package; all else goes before that
through coremltools, on the model in memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

from pytest_ane.build.optimize import passes
from pytest_ane.build.palettize import constants, palettize
from pytest_ane.build.quiet import converter_notes, import_coremltools
from pytest_ane.core.errors import BuildError
from pytest_ane.manifest import Compression, Palettize, Settings, Uncompressed


def compress(model: Any, compression: Compression, package: Path, subject: str) -> tuple[str, ...]:
    """Compress a converted model's weights and save it as `package`.

    Returns:
        What was noted, such as a weight that was declined.

    Raises:
        BuildError: a setting is refused, or a weight cannot be compressed.
    """
    notes: tuple[str, ...] = ()
    if not _all_fast(compression):
        model, notes = _through_coremltools(model, compression, subject)
    with TemporaryDirectory(dir=package.parent) as folder:
        saved = Path(folder, package.name)
        with converter_notes():
            model.save(str(saved))
        if settings := _palettes(saved, compression):
            return notes + palettize(saved, package, settings, subject=subject)
        saved.replace(package)
    return notes


def compress_package(
    source: Path, compression: Compression, package: Path, subject: str
) -> tuple[str, ...]:
    """As `compress`, of an uncompressed package on disk, which stays as it is.

    Raises:
        BuildError: a setting is refused, or a weight cannot be compressed.
    """
    if not _all_fast(compression):
        with converter_notes():
            model = import_coremltools().models.MLModel(str(source), skip_model_load=True)
        return compress(model, compression, package, subject)
    if settings := _palettes(source, compression):
        return palettize(source, package, settings, subject=subject)
    shutil.copytree(source, package)
    return ()


def _all_fast(compression: Compression) -> bool:
    """Whether nothing is left to coremltools."""
    return all(_fast(each) or isinstance(each, Uncompressed) for each in compression.every())


def _palettes(saved: Path, compression: Compression) -> dict[str, Palettize]:
    """The weights of a saved package that our own engine palettizes."""
    asked = {n: compression.for_weight(n, ops) for n, ops in constants(saved).items()}
    return {name: method for name, method in asked.items() if _fast(method)}


def _fast(method: Settings) -> TypeGuard[Palettize]:
    """Whether our own engine makes it."""
    return (
        isinstance(method, Palettize)
        and method.engine == "fast"
        and method.cluster_dim == 1
        and not method.enable_per_channel_scale
        and not method.joint
    )


def _through_coremltools(
    model: Any, compression: Compression, subject: str
) -> tuple[Any, tuple[str, ...]]:
    """Do what is asked and is not left to our own engine."""
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        weights = cto.get_weights_metadata(model, weight_threshold=0)
    asked = {
        name: compression.for_weight(name, {op.op_type for op in weight.child_ops})
        for name, weight in weights.items()
    }
    asked = {name: method for name, method in asked.items() if not _fast(method)}
    notes: list[str] = []
    try:
        for each in passes(cto, asked):
            with converter_notes() as lines:
                model = each.run(model, cto)
            notes += lines
    except OSError:
        raise
    # Its passes fail with whatever goes wrong inside, an AssertionError or an IndexError too.
    except Exception as error:
        said = str(error) or type(error).__name__
        raise BuildError(f"{subject} could not be compressed: {said}") from error
    return model, tuple(notes)
