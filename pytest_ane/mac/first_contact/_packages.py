"""The small packages that the tests compile, load, plan and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mac._experiments import convert
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.atomic import replacing_folder

CHANNELS = 64
SHAPE = (1, CHANNELS, 1, 4)
"""Of `x` in the convolutions."""
PIXELS = (1, 3, 8, 8)


def package(name: str, folder: Path) -> Path:
    """An `.mlpackage` of `PACKAGES` in a folder, made unless it is there."""
    path = folder / f"{name}.mlpackage"
    if not path.exists():
        import_coremltools()
        with converter_notes(), replacing_folder(path) as new:
            PACKAGES[name](new)
    return path


def _conv(path: Path, target: str, factor: float = 1.0) -> None:
    """`conv`, `relu`, `conv` in fp16 between casts of the fp32 input and output."""
    from coremltools.converters.mil import Builder as mb

    weights = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 1, 1))
    first = (weights * factor).astype(np.float32)

    def body(x: Any) -> Any:
        inner = mb.relu(x=mb.conv(x=x, weight=first, name="first"), name="relu")
        return mb.conv(x=inner, weight=first[::-1].copy(), name="second")

    convert(path, body, [mb.TensorSpec(SHAPE)], target)


def _foldable(path: Path) -> None:
    """Ops that an optimizing compiler folds: two reshapes that cancel, and a product with 1."""
    from coremltools.converters.mil import Builder as mb

    weights = np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS, 1, 1))
    # The converter's other passes would fold ops themselves.
    no_folding = import_coremltools().PassPipeline.CLEANUP

    def body(x: Any) -> Any:
        inner = mb.conv(x=x, weight=weights.astype(np.float32), name="first")
        inner = mb.reshape(x=inner, shape=(1, CHANNELS, 4, 1), name="there")
        inner = mb.reshape(x=inner, shape=SHAPE, name="back")
        return mb.relu(x=inner, name="relu")

    convert(path, body, [mb.TensorSpec(SHAPE)], "iOS18", pass_pipeline=no_folding)


def _state(path: Path) -> None:
    """`y` is the sum of all `x` so far, kept in the state `total`."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(x: Any, total: Any) -> Any:
        new = mb.add(x=mb.read_state(input=total), y=x, name="sum")
        mb.coreml_update_state(state=total, value=new)
        return mb.identity(x=new, name="y")

    shape = (1, CHANNELS, 1, 32)
    specs = [mb.TensorSpec(shape, types.fp16), mb.StateTensorSpec(shape, types.fp16)]
    convert(path, body, specs, "iOS18")


def _functions(path: Path) -> None:
    ct = import_coremltools()
    description = ct.utils.MultiFunctionDescriptor()
    for name, factor in (("one", 1.0), ("two", 2.0)):
        part = path.with_name(f"functions-{name}.mlpackage")
        _conv(part, "iOS18", factor)
        description.add_function(str(part), "main", name)
    description.default_function_name = "one"
    ct.utils.save_multifunction(description, str(path))


def _image(path: Path) -> None:
    """The picture's channels, each plus 1, as floats."""
    from coremltools.converters.mil import Builder as mb

    picture = import_coremltools().ImageType(name="x", shape=PIXELS)

    def body(x: Any) -> Any:
        return mb.add(x=x, y=np.float32(1), name="y")

    convert(path, body, [mb.TensorSpec(PIXELS)], "iOS18", inputs=[picture])


def _int8(path: Path) -> None:
    """Rounded `x` as int8, an output type of macOS 26."""
    from coremltools.converters.mil import Builder as mb

    output = import_coremltools().TensorType(name="y", dtype=np.int8)

    def body(x: Any) -> Any:
        return mb.cast(x=x, dtype="int8", name="y")

    convert(path, body, [mb.TensorSpec((1, 16))], "iOS26", outputs=[output])


PACKAGES: Mapping[str, Callable[[Path], None]] = {
    **{f"conv-{target}": partial(_conv, target=target) for target in ("iOS16", "iOS17", "iOS18")},
    "foldable": _foldable,
    "state": _state,
    "functions": _functions,
    "image": _image,
    "int8": _int8,
}
