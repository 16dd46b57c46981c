"""Which engine makes what, seen in the packages; one weight alone; one function of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from pytest_ane.make import compress as module
from pytest_ane.make.compress import compress, compress_weight, extract_function, stored_bytes
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.palettize._palettes import palettize
from pytest_ane.manifest import Linear, Palettize, Prune, Settings, Uncompressed
from pytest_ane.mlprogram.arrays import HalfArray
from pytest_ane.mlprogram.digests import tree_digest
from pytest_ane.mlprogram.errors import BuildError, ProgramError
from pytest_ane.mlprogram.executor import open_session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import decompress, find_weights, take_census
from tests import device_models
from tests.mlprogram.packages import Program


@pytest.fixture(scope="module")
def model() -> Path:
    """Two convolutions, `a` and `b`."""
    ct = import_coremltools()
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential()
    network.add_module("a", torch.nn.Conv2d(16, 32, 1, bias=False))
    network.add_module("b", torch.nn.Conv2d(32, 64, 1, bias=False))
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(network.eval(), torch.zeros(1, 16, 2, 1), check_trace=False)
        converted = ct.convert(
            traced,
            inputs=[ct.TensorType("x", (1, 16, 2, 1), np.float16)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
    return Path(converted.package_path)


def stored(path: Path) -> dict[str, tuple[str, int]]:
    made = read_model(path)
    assert isinstance(made, MLModel)
    return {w.name.partition("_")[0]: (w.storage, w.nbits) for w in take_census(made).weights}


LUT, LINEAR = "constexpr_lut_to_dense", "constexpr_blockwise_shift_scale"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Uncompressed(), {"a": ("const", 16), "b": ("const", 16)}),
        (Palettize(nbits=4, weight_threshold=0), {"a": (LUT, 4), "b": (LUT, 4)}),
        (Palettize(nbits=4, weight_threshold=512), {"a": ("const", 16), "b": (LUT, 4)}),
        (
            Palettize(nbits=2, keep=("b_*",), weight_threshold=0),
            {"a": (LUT, 2), "b": ("const", 16)},
        ),
        (Linear(weight_threshold=512), {"a": ("const", 16), "b": (LINEAR, 8)}),
    ],
)
def test_what_is_stored(model: Path, asked: Any, found: Any, tmp_path: Path) -> None:
    assert compress(model, asked, tmp_path / "shard.mlpackage", "m:L00") == ()
    assert stored(tmp_path / "shard.mlpackage") == found
    assert [p.name for p in tmp_path.iterdir()] == ["shard.mlpackage"]


def test_two_engines_in_one_package(model: Path, tmp_path: Path) -> None:
    linear = {"weights": "a_*", "method": "linear", "weight_threshold": 0}
    asked = Palettize.model_validate(
        {"mode": "uniform", "weight_threshold": 0, "overrides": [linear]}
    )
    compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert stored(tmp_path / "shard.mlpackage") == {"a": (LINEAR, 8), "b": (LUT, 4)}


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({}, True),
        ({"mode": "uniform"}, True),
        ({"mode": "unique"}, True),
        ({"engine": "coremltools"}, False),
        ({"mode": "uniform", "engine": "coremltools"}, False),
        ({"cluster_dim": 2}, False),
        ({"enable_per_channel_scale": True}, False),
    ],
)
def test_the_engine(settings: dict[str, Any], ours: bool, model: Path, tmp_path: Path) -> None:
    asked = Palettize.model_validate({"nbits": 4, "weight_threshold": 0, **settings})
    with patch.object(module, "_through_coremltools", wraps=module._through_coremltools) as theirs:
        notes = compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert theirs.called is not ours
    if settings.get("mode") == "unique":
        assert all("more than 256 distinct values" in note for note in notes)
    else:
        kinds = {storage for storage, _ in stored(tmp_path / "shard.mlpackage").values()}
        assert kinds <= {LUT, LINEAR}


def values(path: Path) -> dict[str, Any]:
    made = read_model(path)
    assert isinstance(made, MLModel)
    return {w.weight.name.partition("_")[0]: decompress(made, w) for w in find_weights(made)}


@pytest.mark.parametrize(
    ("settings", "compressed", "why"),
    [
        ({"group_size": 64, "enable_per_channel_scale": True}, {"b"},
         "32 output channels are not divisible by group_size 64"),
        ({"group_size": 24, "enable_per_channel_scale": True}, set(),
         "64 output channels are not divisible by group_size 24"),
        ({"group_size": 32, "engine": "coremltools"}, {"a", "b"}, ""),
        ({"group_size": 32, "cluster_dim": 3}, set(), "cluster_dim"),
    ],
    ids=["one", "all", "none", "vectors"],
)  # fmt: skip
def test_a_weight_that_coremltools_declines_stays_as_it_was(
    settings: dict[str, Any], compressed: set[str], why: str, model: Path, tmp_path: Path
) -> None:
    """With scales by channel, coremltools 9.0 divides it all the same."""
    asked = Palettize.model_validate({"nbits": 4, "weight_threshold": 0, **settings})
    notes = compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert len(notes) == 2 - len(compressed)
    assert why in " ".join(notes)
    before, after = values(model), values(tmp_path / "shard.mlpackage")
    for name in before.keys() - compressed:
        assert np.asarray(before[name]).tobytes() == np.asarray(after[name]).tobytes()
        assert any(note.startswith(f"{name}_") or f" {name}_" in note for note in notes)
    assert {n for n in before if not np.array_equal(before[n], after[n])} == compressed


def test_blocks_that_do_not_fit_are_told_with_their_weight(model: Path, tmp_path: Path) -> None:
    asked = Linear(granularity="per_block", block_size=24, weight_threshold=512)
    (note,) = compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert note.partition("_")[0] == "b"
    assert note.endswith(": 32 channels are not divisible by block_size 24")


def test_nothing_is_left_of_a_build_that_fails(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = Mock(side_effect=BuildError("no"))
    monkeypatch.setattr("pytest_ane.make.palettize._palettes.palettize", fail)
    with pytest.raises(BuildError):
        compress(model, Palettize(weight_threshold=0), tmp_path / "shard.mlpackage", "m:L00")
    assert list(tmp_path.iterdir()) == []


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
    values = compress_weight(WEIGHT, settings)
    assert values.dtype == np.float32
    assert np.array_equal(values, np.asarray(decompress(model, found)))


@pytest.mark.drawn
@pytest.mark.parametrize(
    "settings",
    [
        Linear(dtype="int8", granularity="per_channel"),
        Linear(dtype="int4", granularity="per_tensor"),
        Linear(dtype="uint4", mode="linear", granularity="per_channel"),
        Linear(dtype="uint8", granularity="per_block", block_size=4),
    ],
)
@pytest.mark.parametrize("shape", [SHAPE, (48, 20)])
def test_integers_are_those_of_coremltools(
    settings: Linear, shape: tuple[int, ...], tmp_path: Path
) -> None:
    asked = settings.model_copy(update={"weight_threshold": 0})
    weight = WEIGHT.reshape(shape)
    compress(_program(weight), asked, tmp_path / "small.mlpackage", "it")
    small = read_model(tmp_path / "small.mlpackage")
    (stored,) = (w for w in find_weights(small) if w.weight.shape == shape)
    if settings.granularity != "per_block":
        assert stored.weight.compressed_bytes == stored_bytes(shape, settings)
    theirs = np.array(decompress(small, stored), np.float32)
    ours = compress_weight(weight, settings)
    # coremltools divides in fp16, which tips some values to the other side of a half step.
    assert (np.abs(ours - theirs) < 1e-3).mean() > 0.98
    errors = [np.square(values - weight.astype(np.float32)).sum() for values in (ours, theirs)]
    assert errors[0] == pytest.approx(errors[1], rel=0.02)


def _program(half: HalfArray) -> Path:
    """A model of one convolution or product that has this weight and no other."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    convolution = half.ndim > 2
    shape = (1, *half.shape[1:]) if convolution else (1, half.shape[1])
    fp16 = ct.converters.mil.mil.types.fp16

    @mb.program(input_specs=[mb.TensorSpec(shape=shape, dtype=fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.conv(x=x, weight=half) if convolution else mb.linear(x=x, weight=half)

    with converter_notes():
        converted = ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16,
            skip_model_load=True,
        )
    return Path(converted.package_path)


def test_the_axis_of_a_transposed_convolution() -> None:
    """Groups lie along axis 1: each of two columns of one value each is exact with one bit."""
    weight = np.tile(np.float32([[1, 5], [2, 9]]), (4, 1)).reshape(8, 2, 1, 1)
    settings = palettes(nbits=1, group_size=1)
    assert np.array_equal(compress_weight(weight, settings, axis=1), weight)
    assert stored_bytes(weight.shape, settings, 1) == 2 + 2 * 2 * 2


@pytest.mark.parametrize("settings", [Prune(target_sparsity=0.5), palettes(mode="unique")])
def test_bytes_that_no_formula_gives(settings: Settings) -> None:
    with pytest.raises(BuildError, match="no formula says what"):
        stored_bytes(SHAPE, settings)


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(BuildError, match="48 output channels are not divisible by group_size 32"):
        compress_weight(WEIGHT, palettes(group_size=32))
    with pytest.raises(BuildError, match="20 input channels are not divisible by block_size 32"):
        compress_weight(WEIGHT, Linear(granularity="per_block"))


def test_nan() -> None:
    with pytest.raises(BuildError, match=r"A weight \[1, 2\] holds a NaN or an infinity"):
        compress_weight(np.float32([[np.nan, 1]]), palettes(granularity="per_tensor"))
    with pytest.raises(BuildError, match=r"A weight \[1, 2\] holds a NaN or an infinity"):
        compress_weight(np.float32([[np.inf, 1]]), Linear())


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_models.save(tmp_path_factory.mktemp("packages"))["functions"]


def test_it_computes_as_the_function_does(several: Path, tmp_path: Path) -> None:
    before = tree_digest(several)
    own = extract_function(several, "two", tmp_path / "two.mlpackage")
    assert tree_digest(several) == before
    x = np.random.default_rng(3).standard_normal((1, 64, 1, 4)).astype(np.float32)
    (expected,) = open_session(read_model(several, function="two")).predict({"x": x}).values()
    (output,) = open_session(read_model(own)).predict({"x": x}).values()
    assert np.array_equal(output, expected)
    assert read_model(own).function == ""


def test_a_function_that_is_not_there(several: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="has no function 'three'"):
        extract_function(several, "three", tmp_path / "three.mlpackage")
