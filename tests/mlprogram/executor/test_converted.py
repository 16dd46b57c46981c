"""Programs that coremltools converted and compressed, run from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor import converted
from tests.mlprogram.executor.converted import SIZE, Attention, causal


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with converted.quiet():
        model = converted.convert(Attention())
        return converted.save(model, tmp_path_factory.mktemp("packages"), "fp16")


def probe(length: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(length).standard_normal((1, SIZE, length, 1)).astype(np.float32)
    return {"x": x, "mask": causal(length)}


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.slow
def test_the_block_computes_what_torch_does(package: Path, length: int) -> None:
    inputs = probe(length)
    with torch.no_grad():
        expected = Attention()(*(torch.from_numpy(a) for a in inputs.values())).numpy()
    session = Session(read_model(package))
    exact = Session(read_model(package), precision="float32")
    np.testing.assert_allclose(session.predict(inputs)["y"], expected, atol=2e-2)
    np.testing.assert_allclose(exact.predict(inputs)["y"], expected, atol=4e-3)


@pytest.mark.slow
def test_declared_shapes(package: Path) -> None:
    x, mask = read_model(package).inputs
    assert x.ranges == ((1, 1), (SIZE, SIZE), (1, 8), (1, 1))
    assert mask.ranges == ((1, 1), (1, 8), (1, 8))
