"""The ANE form of BERT: 1x1 convolutions, norms that fp16 cannot overflow, a finite mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.models.families._ane import ScaledLayerNorm, cast_to, scaled_to_unit
from pytest_ane.models.families.bert._reference import activated
from pytest_ane.models.families.bert._weights import BlockWeights
from pytest_ane.models.families.bert.config import BertConfig
from pytest_ane.models.families.decoder._ane import projection


class AneBlock(nn.Module):
    """One block: `x [1, C, N, 1]` and `mask [1, 1, 1, N]`, added to scores, to `y` as `x`."""

    def __init__(self, config: BertConfig, w: BlockWeights) -> None:
        super().__init__()
        self.config = config
        # The score's scale goes into q, which keeps q k^T well inside fp16.
        self.q_proj = projection(w.q.scaled(config.head**-0.5))
        self.k_proj, self.v_proj, self.o_proj = map(projection, (w.k, w.v, w.o))
        self.attention_norm = ScaledLayerNorm(*w.attention_norm, config.epsilon)
        self.up_proj, self.down_proj = projection(w.up), projection(w.down)
        self.ffn_norm = ScaledLayerNorm(*w.ffn_norm, config.epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention and feed-forward, each added and then normed."""
        x = self.attention_norm(x + self.attention(x, mask))
        fed = self.down_proj(activated(self.up_proj(x), self.config))
        y: Tensor = self.ffn_norm(x + fed)
        return y

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """Heads `[H, 1, d, N]`; a key that is padding has no weight."""
        c = self.config
        q, k, v = (
            project(x).reshape(c.heads, 1, c.head, -1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.width, -1, 1))
        return projected


class AnePooling(nn.Module):
    """`x [1, C, N, 1]` and, for the mean, `mask [1, 1, 1, N]` to one embedding `y [1, C, 1, 1]`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        """Mean or first position; its norm is 1 where the model is so."""
        c = self.config
        if mask:
            # The mask's softmax is 1 / T at the text's T positions and 0 at padding: no sum of
            # hidden states, which might overflow, comes before the division.
            shares = torch.softmax(mask[0], dim=-1).transpose(2, 3)
            y = (x.permute(0, 3, 1, 2) @ shares).permute(0, 2, 1, 3)
        else:
            y = x[:, :, :1]
        if not c.normalized:
            return y
        return cast_to(scaled_to_unit(y, 0.0) * c.width**-0.5, x.dtype)
