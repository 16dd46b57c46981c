"""Compression of an uncompressed Core ML model as the manifest asks, weight by weight."""

from __future__ import annotations

from typing import Any

from pytest_ane.build.optimize import passes
from pytest_ane.build.quiet import converter_notes, import_coremltools
from pytest_ane.errors import BuildError
from pytest_ane.manifest import Compression


def compress(model: Any, compression: Compression, subject: str) -> tuple[Any, tuple[str, ...]]:
    """Compress a converted model's weights through `coremltools.optimize.coreml`.

    Returns:
        The compressed model, and what coremltools noted, such as a weight it declined.

    Raises:
        BuildError: coremltools refuses a setting.
    """
    cto = import_coremltools().optimize.coreml
    with converter_notes():
        weights = cto.get_weights_metadata(model, weight_threshold=0)
    asked = {
        name: compression.for_weight(name, {op.op_type for op in weight.child_ops})
        for name, weight in weights.items()
    }
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
