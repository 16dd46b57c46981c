"""One weight compressed alone: the values and the bytes of a real build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.build.census import find_weights, take_census
from pytest_ane.build.decode import decoded
from pytest_ane.build.palettize import palettize
from pytest_ane.build.single import compressed_alone, stored_bytes
from pytest_ane.core.errors import BuildError
from pytest_ane.manifest import Linear, Palettize, Prune, Settings, Uncompressed
from pytest_ane.mil import read_model
from tests.mil.packages import Program

SHAPE = (48, 20, 1, 1)
WEIGHT = (np.random.default_rng(0).standard_normal(SHAPE)).astype(np.float16)


def package(folder: Path) -> Path:
    """One convolution with the weight `w`."""
    program = Program()
    program.input("x", (1, 20, 1, 1), "FLOAT16", kind=65552)
    program.blob("w", "FLOAT16", SHAPE, WEIGHT.tobytes())
    program.op("conv", "y", "FLOAT16", (1, 48, 1, 1), x="x", weight="w")
    program.output("y", 65552)
    return program.save(folder)


def palettes(**given: Any) -> Palettize:
    return Palettize.model_validate({"weight_threshold": 0} | given)


@pytest.mark.parametrize(
    "settings",
    [
        palettes(nbits=2, group_size=16),
        palettes(nbits=3, group_size=8, mode="uniform"),
        palettes(nbits=6, granularity="per_tensor"),
        palettes(nbits=8, group_size=4),
        palettes(nbits=1, group_size=1),
    ],
)
def test_values_and_bytes_are_those_of_a_package(settings: Palettize, tmp_path: Path) -> None:
    source = package(tmp_path)
    palettize(source, tmp_path / "small.mlpackage", {"w": settings}, threads=1)
    model = read_model(tmp_path / "small.mlpackage")
    (found,) = (f for f in find_weights(model) if f.weight.name == "w")
    assert found.weight.compressed_bytes == stored_bytes(SHAPE, settings)
    values = compressed_alone(WEIGHT, settings)
    assert values.dtype == np.float32
    assert np.array_equal(values, np.asarray(decoded(model, found)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        Linear(dtype="int8", granularity="per_channel"),
        Linear(dtype="int4", granularity="per_tensor"),
        Linear(dtype="uint4", mode="linear", granularity="per_channel"),
    ],
)
@pytest.mark.parametrize("shape", [SHAPE, (48, 20)])
def test_integers_are_coremltools_own(
    settings: Linear, shape: tuple[int, ...], tmp_path: Path
) -> None:
    from pytest_ane.build.compress import compress
    from pytest_ane.build.single import _program

    asked = settings.model_copy(update={"weight_threshold": 0})
    weight = WEIGHT.reshape(shape)
    compress(_program(weight), asked, tmp_path / "small.mlpackage", "it")
    (stored,) = (w for w in take_census(read_model(tmp_path / "small.mlpackage")).weights
                 if w.shape == shape)  # fmt: skip
    assert stored.compressed_bytes == stored_bytes(shape, settings)
    values = compressed_alone(weight, settings)
    steps = 255 if settings.nbits == 8 else 15
    assert 0 < np.abs(values - weight).max() <= (np.ptp(weight.astype(np.float32)) / steps) * 1.1


def test_uncompressed_is_fp16() -> None:
    wide = np.float32([[1 / 3, 2.0]])
    assert compressed_alone(wide, Uncompressed()).tolist() == [[np.float16(1 / 3), 2.0]]
    assert stored_bytes((3, 5), Uncompressed()) == 30


def test_the_axis_of_a_transposed_convolution() -> None:
    """Groups lie along axis 1: each of two columns of one value each is exact with one bit."""
    weight = np.tile(np.float32([[1, 5], [2, 9]]), (4, 1)).reshape(8, 2, 1, 1)
    settings = palettes(nbits=1, group_size=1)
    assert np.array_equal(compressed_alone(weight, settings, axis=1), weight)
    assert stored_bytes(weight.shape, settings, 1) == 2 + 2 * 2 * 2


@pytest.mark.parametrize("settings", [Prune(target_sparsity=0.5), palettes(mode="unique")])
def test_bytes_that_no_formula_gives(settings: Settings) -> None:
    with pytest.raises(BuildError, match="no formula says what"):
        stored_bytes(SHAPE, settings)


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(BuildError, match="48 output channels are not divisible by group_size 32"):
        compressed_alone(WEIGHT, palettes(group_size=32))


def test_nan() -> None:
    with pytest.raises(BuildError, match=r"A weight \[1, 2\] holds a NaN or an infinity"):
        compressed_alone(np.float32([[np.nan, 1]]), palettes(granularity="per_tensor"))
