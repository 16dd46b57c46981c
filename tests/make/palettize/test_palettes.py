"""Groups, axes, threads, bits, and packages; the arithmetic itself has tests of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.palettize._palettes import (
    Mode,
    Palettes,
    TooManyValues,
    find_palettes,
    palettize,
)
from pytest_ane.make.palettize.choose import constants
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import take_census
from tests.mlprogram.packages import Program
from tests.mlprogram.same import differences


def weights(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def find(weight: Any, mode: Mode = "kmeans", nbits: int = 4, **options: int) -> Palettes:
    settings: dict[str, int] = {"groups": 1, "axis": 0, "threads": 1, **options}
    return find_palettes(weight, mode, nbits, **settings)


@pytest.mark.parametrize("mode", ["kmeans", "uniform"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_group_is_palettized_on_its_own(mode: Mode, axis: int) -> None:
    weight = weights(8, 12, 16)
    made = find(weight, mode, 3, groups=4, axis=axis)
    assert made.luts.shape == (4, 8)
    assert made.indices.shape == weight.shape
    pairs = zip(np.split(weight, 4, axis), np.split(made.indices, 4, axis), strict=True)
    for lut, (part, indices) in zip(made.luts, pairs, strict=True):
        alone = find(np.swapaxes(part, 0, axis), mode, 3)
        assert alone.luts[0].tolist() == lut.tolist()
        assert (np.swapaxes(alone.indices, 0, axis) == indices).all()


def test_threads_change_nothing() -> None:
    weight = weights(64, 40_000)
    one, three = (find(weight, nbits=4, groups=64, threads=n) for n in (1, 3))
    assert (one.luts == three.luts).all()
    assert (one.indices == three.indices).all()


@pytest.mark.parametrize(("values", "nbits"), [(1, 1), (2, 1), (5, 3), (16, 4), (17, 6), (256, 8)])
def test_unique_takes_the_fewest_bits(values: int, nbits: int) -> None:
    weight = np.tile(weights(values), 3)
    made = find(weight, "unique")
    assert made.nbits == nbits
    assert (made.luts[0][made.indices] == weight).all()


def test_unique_of_too_many_values() -> None:
    with pytest.raises(TooManyValues, match="more than 256 distinct values"):
        find(np.arange(257).astype(np.float16), "unique")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["kmeans", "uniform", "unique"])
def test_what_is_no_number(mode: Mode, bad: float) -> None:
    weight = weights(4, 50)
    weight[2, 7] = bad
    with pytest.raises(ValueError, match="NaN"):
        find(weight, mode, groups=4)


@pytest.mark.parametrize(("axis", "groups"), [(0, 6), (1, 4), (0, 1)])
def test_errors_by_row_are_those_of_the_values(axis: int, groups: int) -> None:
    weight = np.random.default_rng(0).standard_normal((24, 20, 2)).astype(np.float16)
    made = find_palettes(weight, "kmeans", 3, groups=groups, axis=axis, threads=2)
    lost = np.square(made.values() - weight.astype(np.float64)).sum((1, 2))
    assert made.values().dtype == np.float32
    assert np.allclose(made.errors(weight, 2), lost, rtol=1e-5)


WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture(scope="module")
def network() -> Any:
    """Weights on either axis, one that no group of 16 divides, one too small, a bias, a matmul."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Conv2d(64, 96, 1)
            self.odd = torch.nn.Conv2d(96, 17, 1, bias=False)
            self.transposed = torch.nn.ConvTranspose2d(96, 64, 1, bias=False)
            # Ranges alike would give tables alike, which coremltools stores once.
            self.transposed.weight.data *= 1.7
            self.small = torch.nn.Conv2d(13, 3, 1, bias=False)
            self.matrix = torch.nn.Parameter(torch.randn(1, 1, 32, 64))

        def forward(self, x: Any) -> Any:
            h = torch.nn.functional.silu(self.first(x))
            shares = torch.softmax(self.odd(h), 1)
            y = self.transposed(h) * shares[:, :1]
            y = torch.matmul(self.matrix, y.reshape(1, 1, 64, -1))
            return y * self.small(x[:, :13]).reshape(1, 3, 1, -1)[:, :1]

    return Network().eval()


@pytest.fixture(scope="module")
def models(network: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The converted network by target, as coremltools' object and as a package."""
    ct = import_coremltools()
    import torch

    folder = tmp_path_factory.mktemp("plain")
    made: dict[str, Any] = {}
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(network, torch.zeros(1, 64, 2, 1), check_trace=False)
        for target in ("iOS16", "iOS17", "iOS18"):
            model = ct.convert(
                traced,
                inputs=[ct.TensorType("x", (1, 64, ct.RangeDim(1, 4, default=1), 1), np.float16)],
                outputs=[ct.TensorType("y", dtype=np.float16)],
                convert_to="mlprogram",
                minimum_deployment_target=getattr(ct.target, target),
                skip_model_load=True,
            )
            path = folder / f"{target}.mlpackage"
            model.save(str(path))
            made[target] = (model, path)
    return made


def read(path: Path) -> MLModel:
    model = read_model(path)
    assert isinstance(model, MLModel)
    return model


def theirs(model: Any, path: Path, **settings: Any) -> tuple[MLModel, list[str]]:
    cto = import_coremltools().optimize.coreml
    with converter_notes() as notes:
        config = cto.OptimizationConfig(global_config=cto.OpPalettizerConfig(**settings))
        cto.palettize_weights(model, config).save(str(path))
    return read(path), notes


CASES = [
    *(("iOS18", {"nbits": n, "granularity": "per_tensor"}) for n in (1, 2, 3, 4, 6, 8)),
    *(("iOS18", {"nbits": n, "group_size": 16}) for n in (1, 3, 4, 8)),
    *(("iOS18", {"nbits": n, "granularity": "per_tensor", "weight_threshold": 0}) for n in (1, 6)),
    ("iOS18", {"nbits": 4, "group_size": 16, "weight_threshold": 0}),
    ("iOS18", {"nbits": 4, "group_size": 96, "weight_threshold": 0}),
    *(("iOS16", {"nbits": n, "granularity": "per_tensor"}) for n in (1, 2, 4, 6, 8)),
    ("iOS17", {"nbits": 4, "granularity": "per_tensor", "weight_threshold": 0}),
]


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(("target", "settings"), CASES, ids=str)
def test_uniform_writes_the_bytes_of_coremltools(
    target: str, settings: dict[str, Any], models: dict[str, Any], tmp_path: Path
) -> None:
    model, path = models[target]
    method = Palettize(mode="uniform", **settings)
    given = {"granularity": method.granularity, "group_size": method.group_size}
    expected, declined = theirs(
        model, tmp_path / "theirs.mlpackage", mode="uniform",
        **{"weight_threshold": method.weight_threshold, **settings, **given},
    )  # fmt: skip
    notes = palettize(path, tmp_path / "ours.mlpackage", dict.fromkeys(constants(path), method))
    assert differences(read(tmp_path / "ours.mlpackage"), expected) == []
    ours, other = (tmp_path / f"{n}.mlpackage" / WEIGHTS for n in ("ours", "theirs"))
    assert ours.read_bytes() == other.read_bytes()
    said = {n.split()[4].rstrip(".") for n in declined if n.startswith("Cannot perform")}
    assert {n.partition(":")[0] for n in notes if "vector" not in n} == said


@pytest.mark.drawn
@pytest.mark.parametrize("nbits", [1, 4, 8])
def test_kmeans_writes_the_operations_of_coremltools(
    nbits: int, models: dict[str, Any], tmp_path: Path
) -> None:
    model, path = models["iOS18"]
    settings: Any = {"mode": "kmeans", "nbits": nbits, "group_size": 16}
    method = Palettize(**settings)
    expected, _ = theirs(
        model, tmp_path / "theirs.mlpackage", granularity="per_grouped_channel", **settings
    )
    palettize(path, tmp_path / "ours.mlpackage", dict.fromkeys(constants(path), method))
    ours = read(tmp_path / "ours.mlpackage")
    found = differences(ours, expected)
    assert all(".data: " in line and "constexpr_lut_to_dense" in line for line in found)
    for name, shape in errors_by_group(read(path), ours, expected):
        assert (shape[0] <= shape[1]).all(), name


def errors_by_group(source: MLModel, *made: MLModel) -> Iterator[tuple[str, list[Any]]]:
    dense = {op.name: op for op in source.program.walk()}
    for ops in zip(*(m.program.walk() for m in made), strict=True):
        if ops[0].op != "constexpr_lut_to_dense":
            continue
        name = ops[0].name.removesuffix("_palettized")
        weight = load(source, dense[name].attributes["val"]).astype(np.float64)
        both = []
        for model, op in zip(made, ops, strict=True):
            lut, indices = (load(model, op.inputs[k][0]) for k in ("lut", "indices"))  # type: ignore[arg-type]
            axis = int(np.argmax(lut.shape[:-2]))
            tables = lut.reshape(-1, lut.shape[-2]).astype(np.float64)
            rows = np.swapaxes(weight, 0, axis).reshape(len(tables), -1)
            picks = np.swapaxes(indices, 0, axis).reshape(len(tables), -1)
            error = (np.take_along_axis(tables, picks.astype(int), 1) - rows) ** 2
            both.append(error.sum(axis=1))
        yield name, both


def test_only_what_was_asked_for_changes(models: dict[str, Any], tmp_path: Path) -> None:
    _, path = models["iOS18"]
    method = Palettize(mode="uniform", nbits=4, granularity="per_tensor")
    assert palettize(path, tmp_path / "o.mlpackage", {"first_weight_to_fp16": method}) == ()
    made = read(tmp_path / "o.mlpackage")
    found = [op.name for op in made.program.walk() if op.op.startswith("constexpr_")]
    assert found == ["first_weight_to_fp16_palettized"]
    kept = {
        op.name: load(made, op.attributes["val"]) for op in made.program.walk() if op.op == "const"
    }
    for op in read(path).program.walk():
        if op.op == "const" and op.name != "first_weight_to_fp16":
            assert np.array_equal(kept[op.name], load(read(path), op.attributes["val"]))


def test_nothing_asked_for_copies_the_program(models: dict[str, Any], tmp_path: Path) -> None:
    _, path = models["iOS18"]
    assert palettize(path, tmp_path / "o.mlpackage", {}) == ()
    assert differences(read(path), read(tmp_path / "o.mlpackage")) == []
    assert (path / WEIGHTS).read_bytes() == (tmp_path / "o.mlpackage" / WEIGHTS).read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number(value: float, tmp_path: Path) -> None:
    weight = np.ones((32, 8, 1, 1), np.float16)
    weight[3, 4] = value
    path, settings = one_conv(tmp_path, weight), {"w": Palettize(weight_threshold=0)}
    with pytest.raises(BuildError, match=r"model.mlpackage: w holds a NaN .* compression.keep"):
        palettize(path, tmp_path / "o.mlpackage", settings)
    with pytest.raises(BuildError, match=r"^m:L00: w holds a NaN"):
        palettize(path, tmp_path / "n.mlpackage", settings, subject="m:L00")


@pytest.mark.parametrize("settings", [{}, {"granularity": "per_tensor", "nbits": 3}])
def test_a_target_too_old(settings: dict[str, Any], tmp_path: Path) -> None:
    path = one_conv(tmp_path, np.ones((64, 8, 1, 1), np.float16), version=7)
    method = Palettize(weight_threshold=0, **settings)
    with pytest.raises(BuildError, match=r"w was to have .* newer deployment target"):
        palettize(path, tmp_path / "o.mlpackage", {"w": method})


@pytest.mark.parametrize(
    ("weight", "settings", "note"),
    [
        (np.arange(32 * 16, dtype=np.float16).reshape(32, 16, 1, 1), {"mode": "unique"},
         "w: has a group of more than 256 distinct values"),
        (np.ones((32, 8, 1, 1), np.float32), {},
         "w: is of fp32, which only engine = 'coremltools' palettizes"),
        (np.ones((17, 96, 1, 1), np.float16), {"mode": "uniform", "nbits": 4, "group_size": 16},
         "w: 17 output channels are not divisible by group_size 16"),
    ],
)  # fmt: skip
def test_what_is_left_as_it_is_is_named(
    weight: Any, settings: dict[str, Any], note: str, tmp_path: Path
) -> None:
    path = one_conv(tmp_path, weight)
    method = Palettize(weight_threshold=0, **settings)
    assert palettize(path, tmp_path / "o.mlpackage", {"w": method}) == (note,)
    assert differences(read(path), read(tmp_path / "o.mlpackage")) == []


def one_conv(folder: Path, weight: Any, version: int = 9) -> Path:
    program = Program(f"CoreML{version - 1}")
    program.model.specificationVersion = version
    kind = {"float16": "FLOAT16", "float32": "FLOAT32"}[weight.dtype.name]
    program.input("x", (1, weight.shape[1], 1, 1), kind, kind=65552 if kind == "FLOAT16" else 65568)
    program.blob("w", kind, weight.shape, weight.tobytes())
    program.op("conv", "y", kind, (1, weight.shape[0], 1, 1), x="x", weight="w")
    program.output("y", 65552 if kind == "FLOAT16" else 65568)
    return program.save(folder)


@pytest.mark.parametrize(("version", "nbits"), [(8, 4), (9, 3)])
def test_unique_takes_bits_that_the_target_knows(tmp_path: Path, version: int, nbits: int) -> None:
    """Six values need 3 bits, and before iOS 18 tables have 2, 4, 16, 64 or 256 entries."""
    weight = (np.arange(4096) % 6 - 2.0).reshape(64, 64, 1, 1).astype(np.float16)
    path = one_conv(tmp_path, weight, version)
    method = Palettize(mode="unique", granularity="per_tensor")
    palettize(path, tmp_path / "made.mlpackage", {"w": method})
    plain, made = read(path), read(tmp_path / "made.mlpackage")
    [stored] = take_census(made).weights
    assert (stored.storage, stored.nbits) == ("constexpr_lut_to_dense", nbits)
    x = {"x": np.random.default_rng(0).standard_normal((1, 64, 1, 1)).astype(np.float16)}
    np.testing.assert_array_equal(Session(made).predict(x)["y"], Session(plain).predict(x)["y"])
