"""Gathers, scatters, slices and sorts of torch, converted by coremltools and run from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.converted import quiet


class Moves(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        """Outputs of one kind each, for `x (2, 4, 6)` and indices `i (2,)` below 4."""
        rows = i.to(torch.int64)
        along = rows.reshape(2, 1, 1).expand(2, 1, 6)
        cache = torch.zeros_like(x)
        cache[:, 1:3, ::2] = x[:, :2, :3]
        return (
            x[:, rows],
            torch.gather(x, 1, along),
            torch.scatter_add(x, 1, along, x[:, :1]),
            torch.index_select(x, -1, rows),
            x.index_put((rows - 2,), x.flip(0), accumulate=True),
            cache,
            x[..., -3:-1],
            torch.topk(x, 3, dim=1)[0],
            torch.sort(x, dim=-1, descending=True)[0],
            torch.cumsum(x, 1),
            torch.tril(x, 1),
            torch.nn.functional.pixel_shuffle(x.reshape(1, 4, 2, 6), 2),
            torch.nn.functional.one_hot(rows, 5).float(),
            torch.stack([x, -x], -2),
            torch.tile(x, (1, 2, 1)),
            torch.where(x > 0, x, x[:1]),
        )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import coremltools as ct

    path = tmp_path_factory.mktemp("moves") / "moves.mlpackage"
    example = (torch.zeros(2, 4, 6), torch.zeros(2, dtype=torch.int32))
    with quiet():
        ct.convert(
            torch.jit.trace(Moves(), example),
            inputs=[
                ct.TensorType("x", (2, 4, 6), dtype=np.float32),
                ct.TensorType("i", (2,), dtype=np.int32),
            ],
            compute_precision=ct.precision.FLOAT32,
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))
    return path


@pytest.mark.parametrize("indices", [[0, 3], [2, 2]])
def test_they_compute_what_torch_does(package: Path, indices: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    i = np.array(indices, np.int32)
    results = Session(read_model(package)).predict({"x": x, "i": i})
    expected = Moves()(torch.from_numpy(x), torch.from_numpy(i))
    for (name, ours), theirs in zip(results.items(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5, err_msg=name)
