"""Small packages with what plans walk: kinds of operations, nested blocks, functions, states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools


def save(folder: Path) -> dict[str, Path]:
    """`conv`, `branches`, `functions` and `state`, each an `.mlpackage`."""
    import_coremltools()
    with converter_notes():
        makers = {"conv": _conv, "branches": _branches, "functions": _functions, "state": _state}
        return {name: make(folder) for name, make in makers.items()}


def _saved(program: Any, path: Path) -> Path:
    ct = import_coremltools()
    options = {
        "convert_to": "mlprogram",
        "minimum_deployment_target": ct.target.iOS18,
        "skip_model_load": True,
    }
    ct.convert(program, **options).save(str(path))
    return path


def _conv(folder: Path, factor: float = 1.0) -> Path:
    """fp32 input and output around `conv`, `relu`, `conv` in fp16: two boundary casts."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    weights = np.random.default_rng(0).standard_normal((64, 64, 1, 1)).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec((1, 64, 1, 4))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        inner = mb.relu(x=mb.conv(x=x, weight=weights * np.float32(factor), name="first"), name="r")
        return mb.conv(x=inner, weight=weights[::-1].copy(), name="second")

    return _saved(program, folder / f"conv{factor:g}.mlpackage")


def _branches(folder: Path) -> Path:
    """A `cond` and a `while_loop`."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1, 4))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        total = mb.reduce_sum(x=x, axes=[0, 1], keep_dims=False)
        chosen = mb.cond(
            pred=mb.greater(x=total, y=0.0),
            _true_fn=lambda: mb.sin(x=x, name="then"),
            _false_fn=lambda: mb.cos(x=x, name="else"),
            name="chosen",
        )
        return mb.while_loop(
            _cond=lambda i, v: mb.less(x=i, y=3.0),
            _body=lambda i, v: (mb.add(x=i, y=1.0), mb.tanh(x=v, name="body")),
            loop_vars=(total, chosen),
            name="looped",
        )[1]

    return _saved(program, folder / "branches.mlpackage")


def _functions(folder: Path) -> Path:
    """`one` and `two`, of which `one` is the default."""
    ct = import_coremltools()
    description = ct.utils.MultiFunctionDescriptor()
    for name, factor in (("one", 1.0), ("two", 2.0)):
        description.add_function(str(_conv(folder, factor)), "main", name)
    description.default_function_name = "one"
    path = folder / "functions.mlpackage"
    ct.utils.save_multifunction(description, str(path))
    return path


def _state(folder: Path) -> Path:
    """`y` is the sum of all `x` so far."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    specs = [mb.TensorSpec((2,), types.fp16), mb.StateTensorSpec((2,), types.fp16)]

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def program(x: Any, total: Any) -> Any:
        new = mb.add(x=mb.read_state(input=total), y=x, name="sum")
        mb.coreml_update_state(state=total, value=new)
        return mb.identity(x=new, name="y")

    return _saved(program, folder / "state.mlpackage")
