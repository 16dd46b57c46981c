"""A torch model, converted and compared with itself: an ordinary test of an ordinary project.

pytest -p pytest_ane.mac.predict examples/predict/test_torch_model.py
"""

import coremltools as ct
import numpy as np
import pytest
import torch
from torch import nn


class Perceptron(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, 32]` to the same shape."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Perceptron().eval()


@pytest.fixture(scope="module")
def model(module: nn.Module) -> ct.models.MLModel:
    return ct.convert(
        torch.jit.trace(module, torch.zeros(2, 32)),
        inputs=[ct.TensorType("x", (ct.RangeDim(1, 16, default=2), 32))],
        outputs=[ct.TensorType("y")],
        minimum_deployment_target=ct.target.iOS17,
    )


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_predictions_are_those_of_torch(
    module: nn.Module, model: ct.models.MLModel, rows: int
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.predict({"x": x})["y"], expected, rtol=1e-2, atol=1e-2)


def test_more_rows_than_declared_are_refused(model: ct.models.MLModel) -> None:
    with pytest.raises(RuntimeError):
        model.predict({"x": np.zeros((17, 32), np.float32)})
