"""The compression measurement: what it is made of."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.compression.judge import figures
from pytest_ane.gates.compression.measure import (
    CompressionMeasurement,
    Palette,
    measure_palettes,
)
from pytest_ane.make import Artifact, BuildRecord, Distortion, WeightComparison
from pytest_ane.make.compress import compress
from pytest_ane.manifest import Compression, Shard
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import take_census
from pytest_ane.report.verdict import details
from tests import multifunction
from tests.make.test_distortion import CASES, dense, loaded, package, palette
from tests.make.test_optimize import saved_network
from tests.mlprogram.packages import Program
from tests.mlprogram.test_values import pack

ERRORS = (Distortion("u", 1.5, 25.0),)


def test_of_a_package_that_was_built_here(tmp_path: Path) -> None:
    path = package(tmp_path / "a", ("u", [[3.0, 4.0]]))
    weights = WeightComparison(ERRORS, ("gone",), ("new",), ("main/scale",))
    record = BuildRecord({}, {}, ("a note",), 1.0, weights, digest=Artifact(path).digest)
    artifact, model = Artifact(path, record), read_model(path)
    expected = CompressionMeasurement(
        take_census(model), artifact.size, ("a note",), ERRORS, "build", ("gone",), ("new",),
        ("main/scale",),
    )  # fmt: skip
    assert measure(Shard(model="m", id="a"), artifact, model) == expected
    assert [weight.name for weight in expected.census.weights] == ["u"]


def test_of_a_package_of_unknown_making(tmp_path: Path) -> None:
    path, other = (package(tmp_path / n, ("u", [[3.0, v]])) for n, v in (("a", 4.0), ("b", 5.0)))
    shard = Shard(model="m", id="a", artifact=path, reference=other)
    measurement = measure(shard, Artifact(path), read_model(path))
    assert (measurement.notes, measurement.against) == ((), "itself")
    assert [(d.name, d.sse) for d in measurement.distortions] == [("u", 1.0)]


@pytest.mark.slow
def test_weights_of_other_functions_count_apart(tmp_path: Path) -> None:
    """What a ratio is of: `decode` and `verify4` have 64 weights of their own each, in fp16."""
    path = multifunction.make(tmp_path)["reference"]
    model = read_model(path, function="verify4")
    shard = Shard(model="m", id="a", artifact=path, function="verify4", reference="none")
    measurement = measure(shard, Artifact(path), model)
    assert len(measurement.census.weights) == 1
    assert measurement.others == 128
    ratio = {figure.name: figure.value for figure in figures(measurement, {})}["ratio"]
    assert ratio == round(128 / (measurement.size - 128), 4)
    for limit, status in ((0.99 * ratio, "passed"), (1.01 * ratio, "failed")):
        policy = CompressionPolicy(min_ratio=limit)
        assert judge(measurement, policy, "m:a[f]", None).status == status


def palettized(folder: Path, indices: Any, tables: Any, *, name: str = "w") -> MLModel:
    """A weight `[O, I]` under palettes `[G, 2^bits]`."""
    indices, tables = np.asarray(indices), np.asarray(tables, np.float16)
    bits, p = tables.shape[1].bit_length() - 1, Program()
    lut = (len(tables), 1, tables.shape[1], 1)
    p.input("x", indices.shape, "FLOAT16")
    p.blob("indices", f"UINT{bits}", indices.shape, pack(indices.ravel().tolist(), bits).tobytes())
    p.blob("lut", "FLOAT16", lut, tables.tobytes())
    p.op("constexpr_lut_to_dense", name, "FLOAT16", indices.shape, indices="indices", lut="lut")
    p.op("mul", "y", "FLOAT16", indices.shape, x="x", y=name)
    p.output("y")
    return read_model(p.save(folder))


@pytest.mark.parametrize(
    ("rows", "tables", "values", "counts"),
    [
        ([[0, 1, 1, 3], [1, 1, 0, 3]], [[0.5, -1.0, 7.0, 2.0]], (-1.0, 0.5, 2.0, 7.0),
         (4, 2, 2, 0)),
        # Of several the median of each rank: rows of a palette each.
        ([[0, 0, 0, 1], [1, 1, 0, 1], [0, 1, 1, 1]], [[1, 3], [6, 2], [2, 9]], (2.0, 6.0), (7, 5)),
    ],
)  # fmt: skip
def test_a_palette_and_how_often_each_entry_is_used(
    rows: Any, tables: Any, values: Any, counts: Any, tmp_path: Path
) -> None:
    assert measure_palettes(palettized(tmp_path, rows, tables)) == (Palette("w", values, counts),)


def test_a_large_palette_comes_in_16_bins_and_what_is_not_finite_is_nan(tmp_path: Path) -> None:
    entries = np.arange(64, dtype=np.float16)[None]
    (found,) = measure_palettes(palettized(tmp_path / "a", [[0, 1, 63, 63]], entries))
    assert found.values == pytest.approx([63 / 16 * (i + 0.5) for i in range(16)], rel=1e-4)
    assert found.counts == (2, *[0] * 14, 2)
    entries = np.array([[1.0, math.nan, math.inf, *[0.0] * 61]])
    (found,) = measure_palettes(palettized(tmp_path / "b", [[0, 1, 2, 3]], entries))
    assert math.isnan(found.values[-1])
    assert (found.counts[-1], sum(found.counts)) == (2, 4)


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name"),
    [("iOS18", "uniform"), ("iOS16", "k-means"), ("iOS16", "int8"), ("iOS18", "8 bits"),
     ("iOS18", "pairs"), ("iOS18", "scaled"), ("iOS18", "uint4 by block"),
     ("iOS18", "pruned, palettes of int8")],
)  # fmt: skip
def test_what_coremltools_wrote(target: str, name: str, tmp_path: Path) -> None:
    asked: Any = TypeAdapter(Compression).validate_python(CASES[name])
    compress(saved_network(target), asked, tmp_path / "m.mlpackage", "m:L00")
    exact = dense(loaded(tmp_path / "m.mlpackage"))
    found = measure_palettes(read_model(tmp_path / "m.mlpackage"))
    assert [each.weight for each in found] == list(exact)
    for each in found:
        values = exact[each.weight].reshape(-1)
        if len(each.values) == 16 and len(np.unique(values)) > 16:
            counts, edges = np.histogram(values, 16)
            assert each.values == pytest.approx((edges[1:] + edges[:-1]) / 2, abs=2e-3)
            # A value at an edge may fall on either side of it.
            assert np.abs(np.cumsum(each.counts) - np.cumsum(counts)).max() <= len(values) / 50
        else:
            used = {v: n for v, n in zip(each.values, each.counts, strict=True) if n}
            unique, times = np.unique(values, return_counts=True)
            assert [*used] == pytest.approx(unique, abs=1e-4)
            assert [*used.values()] == times.tolist()


def test_a_large_weight_without_a_palette_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Any = TypeAdapter(Compression).validate_python(CASES["int8"])
    compress(saved_network("iOS18"), asked, tmp_path / "m.mlpackage", "m:L00")
    model = read_model(tmp_path / "m.mlpackage")
    whole = {w.name: w.elements for w in take_census(model).weights}
    module = sys.modules["pytest_ane.gates.compression.measure"]
    monkeypatch.setattr(module, "_SAMPLE", 1000)
    for each in measure_palettes(model):
        assert 500 <= sum(each.counts) <= 1000 < whole[each.weight]


def test_a_damaged_weight_has_none(tmp_path: Path) -> None:
    """Its indices are of another shape than it is said to be."""
    assert measure_palettes(read_model(palette(tmp_path / "a", rows=3))) == ()


def test_the_verdict_has_them_and_the_terminal_does_not(tmp_path: Path) -> None:
    model = palettized(tmp_path, [[0, 1, 1, 3]], [[0.5, -1.0, 7.0, 2.0]])
    census = take_census(model)
    measurement = CompressionMeasurement(census, 1000, palettes=measure_palettes(model))
    verdict = judge(measurement, CompressionPolicy(), "m:L00", None)
    table = verdict.table("palettes")
    assert table.rows == (("w", -1.0, 0.5), ("w", 0.5, 0.25), ("w", 2.0, 0.25), ("w", 7.0, 0.0))
    assert "values of weights" not in "\n".join(details(verdict))
    older = CompressionMeasurement(census, 1000)
    assert judge(older, CompressionPolicy(), "m:L00", None).table("palettes") is None


@pytest.mark.parametrize(
    ("values", "counts"), [((1.0,), (1, 2)), ((1.0,), (-1,)), ((1.0,), (0,)), ((), ())]
)
def test_no_palette_has_such_elements(values: tuple[float, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"values with|no elements"):
        Palette("w", values, counts)
