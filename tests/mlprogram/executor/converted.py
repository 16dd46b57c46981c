"""Packages converted by coremltools, once for all tests: an oracle that shares no code with us."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SIZE, LONGEST = 64, 8


class Attention(nn.Module):
    """A small block as language models on the ANE have them: `[1, C, T, 1]` and 1x1 kernels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.Parameter(1 + 0.1 * torch.randn(1, SIZE, 1, 1))
        self.q, self.k, self.v, self.o = (nn.Conv2d(SIZE, SIZE, 1, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Conv2d(SIZE, 2 * SIZE, 1, bias=True) for _ in range(2))
        self.down = nn.Conv2d(2 * SIZE, SIZE, 1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) * self.norm
        q, k, v = (p(h).reshape(4, SIZE // 4, -1) for p in (self.q, self.k, self.v))
        low, high = q.chunk(2, dim=1)
        q = torch.cat([-high, low], dim=1)
        weights = torch.softmax(q.transpose(1, 2) @ k * 0.25 + mask, dim=-1)
        x = x + self.o((v @ weights.transpose(1, 2)).reshape(1, SIZE, -1, 1))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def causal(length: int) -> np.ndarray[Any, Any]:
    """`[1, T, T]`: 0 where a position may look, -1e4 where not."""
    return np.triu(np.full((1, length, length), -1e4, np.float32), 1)


@contextlib.contextmanager
def quiet() -> Any:
    """Silence: coremltools logs, warns and draws bars."""
    logging.disable(logging.CRITICAL)
    silent = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(silent):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def convert(module: nn.Module) -> Any:
    """The block in fp16 with T from 1 to 8."""
    import coremltools as ct

    traced = torch.jit.trace(
        module.eval(), (torch.zeros(1, SIZE, 2, 1), torch.from_numpy(causal(2)))
    )
    length = ct.RangeDim(1, LONGEST, default=2)
    return ct.convert(
        traced,
        inputs=[
            ct.TensorType("x", (1, SIZE, length, 1), dtype=np.float16),
            ct.TensorType("mask", (1, length, length), dtype=np.float16),
        ],
        outputs=[ct.TensorType("y", dtype=np.float16)],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT16,
    )


def save(model: Any, folder: Path, name: str) -> Path:
    """The model as a package."""
    path = folder / f"{name}.mlpackage"
    model.save(str(path))
    return path
