"""The compression measurement: what it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.compression.judge import figures
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.make import Artifact, BuildRecord, Distortion, WeightComparison, take_census
from pytest_ane.manifest import Shard
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.weights import Census, Weight
from tests import multifunction
from tests.make.test_distortion import package

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


def test_no_package_has_fewer_bytes_than_none() -> None:
    with pytest.raises(ValueError, match="a package of -1 bytes"):
        CompressionMeasurement(Census(()), -1)


@pytest.mark.slow
def test_weights_of_other_functions_count_apart(tmp_path: Path) -> None:
    """What a ratio is of: `decode` and `verify4` have 64 weights of their own each, in fp16."""
    path = multifunction.make(tmp_path)["reference"]
    model = read_model(path, function="verify4")
    shard = Shard(model="m", id="a", artifact=path, function="verify4", reference="none")
    measurement = measure(shard, Artifact(path), model)
    assert len(measurement.census.weights) == 1
    assert measurement.others == 128
    ratio = {figure.name: figure.value for figure in figures(measurement)}["ratio"]
    assert ratio == round(128 / (measurement.size - 128), 4)


@pytest.mark.parametrize(("limit", "passes"), [(0.999, True), (1.001, False)])
def test_a_ratio_leaves_other_functions_out(limit: float, passes: bool) -> None:
    weight = Weight("w", (500,), 1000, 16)
    measurement = CompressionMeasurement(Census((weight,)), 3000, others=2000)
    verdict = judge(measurement, CompressionPolicy(min_ratio=limit), "m:a[f]", None)
    assert (verdict.status == "passed") is passes
