"""Attention with a key-value cache held in states, some tokens after others.

pytest -p pytest_ane.mac.predict examples/predict/test_stateful_model.py
"""

import coremltools as ct
import numpy as np
import pytest
import torch
from torch import nn

SIZE, LONGEST = 16, 8


class CachedAttention(nn.Module):
    """Attention of tokens to all before them; keys and values stay in two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, LONGEST, SIZE))
        self.register_buffer("values", torch.zeros(1, LONGEST, SIZE))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The answers to tokens `x` `[1, T, SIZE]`.

        `mask` `[1, T, P + T]` is 0 where a token may look and very negative elsewhere; its width
        says that P tokens came before.
        """
        end = mask.shape[-1]
        begin = end - x.shape[1]
        self.keys[:, begin:end] = self.key(x)
        self.values[:, begin:end] = self.value(x)
        keys, values = self.keys[:, :end], self.values[:, :end]
        scores = self.query(x) @ keys.transpose(1, 2) * SIZE**-0.5 + mask
        return torch.softmax(scores, dim=-1) @ values


def causal(begin: int, end: int) -> np.ndarray:
    """The mask of the tokens from `begin` to `end`."""
    allowed = np.tri(end - begin, end, begin, dtype=bool)
    return np.where(allowed, 0, -1e4).astype(np.float32)[None]


@pytest.fixture(scope="module")
def module() -> CachedAttention:
    torch.manual_seed(0)
    return CachedAttention().eval()


@pytest.fixture(scope="module")
def model(module: CachedAttention) -> ct.models.MLModel:
    traced = torch.jit.trace(
        CachedAttention().eval(), (torch.zeros(1, 2, SIZE), torch.from_numpy(causal(1, 3)))
    )
    traced.load_state_dict(module.state_dict())
    new, all_ = ct.RangeDim(1, LONGEST, default=1), ct.RangeDim(1, LONGEST, default=1)
    return ct.convert(
        traced,
        inputs=[ct.TensorType("x", (1, new, SIZE)), ct.TensorType("mask", (1, new, all_))],
        outputs=[ct.TensorType("y")],
        states=[
            ct.StateType(ct.TensorType(shape=(1, LONGEST, SIZE), dtype=np.float16), name=name)
            for name in ("keys", "values")
        ],
        minimum_deployment_target=ct.target.iOS18,
    )


def attention(module: CachedAttention, tokens: torch.Tensor) -> torch.Tensor:
    """The same without a cache: all tokens `[1, T, SIZE]` at once."""
    q, k, v = module.query(tokens), module.key(tokens), module.value(tokens)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("sizes", [[1] * LONGEST, [5, 1, 2], [LONGEST]])
def test_in_steps_is_the_same_as_all_at_once(
    module: CachedAttention, model: ct.models.MLModel, sizes: list[int]
) -> None:
    tokens = torch.randn(1, LONGEST, SIZE, generator=torch.Generator().manual_seed(1))
    state, steps, begin = model.make_state(), [], 0
    for size in sizes:
        x = tokens[:, begin : begin + size].numpy()
        steps.append(model.predict({"x": x, "mask": causal(begin, begin + size)}, state)["y"])
        begin += size
    with torch.no_grad():
        expected = attention(module, tokens).numpy()
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, rtol=1e-2, atol=1e-2)


def test_each_state_remembers_its_own_tokens(model: ct.models.MLModel) -> None:
    first, second = model.make_state(), model.make_state()
    ones = np.ones((1, 1, SIZE), np.float32)
    alone = model.predict({"x": ones, "mask": causal(0, 1)}, first)["y"]
    model.predict({"x": -ones, "mask": causal(1, 2)}, first)
    np.testing.assert_array_equal(
        model.predict({"x": ones, "mask": causal(0, 1)}, second)["y"], alone
    )
    assert np.any(first.read_state("keys") != second.read_state("keys"))
