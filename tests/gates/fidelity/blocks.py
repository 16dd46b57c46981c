"""Small residual blocks written by hand, and palettized by the build's own engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_ane.make.palettize._palettes import palettize
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.probes.cases import Case
from tests.mlprogram.packages import Program

WIDTH = 32
NAMES = ("first", "second", "third")
Rows = npt.NDArray[np.float32]


def program(seed: int = 0, scale: float = 1.0) -> Program:
    """`y = x + third(relu(second(relu(first(x)))))`, 1x1 convolutions of 32 channels, T = 1..8."""
    rng = np.random.default_rng(seed)
    made = Program()
    ranges = ((1, 1), (WIDTH, WIDTH), (1, 8), (1, 1))
    made.input("x", (1, WIDTH, 1, 1), "FLOAT16", ranges, kind=65552)
    shape = (1, WIDTH, None, 1)
    last = "x"
    for name in NAMES:
        weight = rng.standard_normal((WIDTH, WIDTH)) * scale / np.sqrt(WIDTH)
        data = weight.astype(np.float16).tobytes()
        made.blob(name, "FLOAT16", (WIDTH, WIDTH, 1, 1), data)
        made.op("conv", f"{name}_out", "FLOAT16", shape, x=last, weight=name)
        last = f"{name}_out"
        if name != NAMES[-1]:
            last = f"{name}_relu"
            made.op("relu", last, "FLOAT16", shape, x=f"{name}_out")
    made.op("add", "y", "FLOAT16", shape, x="x", y=last)
    made.output("y", 65552)
    return made


def plain(folder: Path, seed: int = 0) -> Path:
    """The block in fp16."""
    return program(seed).save(folder / "plain")


def palettized(source: Path, folder: Path, bits: Mapping[str, int], mode: str = "kmeans") -> Path:
    """A copy in which some weights are palettized, in groups of 16 rows."""
    settings = {
        name: Palettize.model_validate(
            {"nbits": n, "mode": mode, "group_size": 16, "weight_threshold": 0}
        )
        for name, n in bits.items()
    }
    folder.mkdir(exist_ok=True)
    assert palettize(source, folder / "model.mlpackage", settings, threads=1) == ()
    return folder / "model.mlpackage"


def models(folder: Path, bits: Mapping[str, int], mode: str = "kmeans") -> tuple[MLModel, MLModel]:
    """The palettized block, and the block itself."""
    source = plain(folder)
    return read_model(palettized(source, folder / "small", bits, mode)), read_model(source)


def cases(
    original: MLModel, count: int = 2, length: int = 4, *, residual: bool = True
) -> list[Case]:
    """Gaussian inputs with what the block itself makes of them in float32."""
    session = Session(original, "float32")
    rng = np.random.default_rng(1)
    found = []
    for number in range(count):
        x = rng.standard_normal((1, WIDTH, length, 1)).astype(np.float16).astype(np.float32)
        y = rows(session.predict({"x": x}))
        path = {"y": rows({"y": x})["y"]} if residual else {}
        found.append(
            Case("gaussian", f"gaussian #{number}", ({"x": x},), rows, y, length, 4.0, 0, path)
        )
    return found


def rows(outputs: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Rows]:
    """`[T, C]` of the output `[1, C, T, 1]`."""
    return {"y": np.asarray(outputs["y"], np.float32)[0, :, :, 0].T}
