"""A model of your own: a gated feed-forward block and a classifier, each one shard.

`shards.toml` beside this file says `builder = "my_model:build"`: for every shard id that it lists,
`build` is called once and says which torch module the shard is, and what goes in and out. The
gates then convert it, compress it, and hold the package against the same module in float32.

Run them from the repository's root:

    pytest --ane-manifest=examples/own_model/shards.toml --ane-shards=all -m gate

What the ANE likes: 4-D tensors `[1, C, 1, T]` or `[1, C, T, 1]`, projections as 1x1 convolutions,
masks and tables as constants of the module. `"T"` in a port's shape is the flexible length, 1 to
`max-tokens`. Every port is fp16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.models.families import Conversion, Port

WIDTH, INNER, CLASSES = 128, 256, 32


class FeedForward(nn.Module):
    """x + down(silu(gate(x)) * up(x)), on `[1, C, T, 1]`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Conv2d(WIDTH, INNER, 1, bias=False)
        self.up = nn.Conv2d(WIDTH, INNER, 1, bias=False)
        self.down = nn.Conv2d(INNER, WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """From `[1, 128, T, 1]` to the same shape."""
        inner: Tensor = nn.functional.silu(self.gate(x)) * self.up(x)
        result: Tensor = x + self.down(inner)
        return result


class Classifier(nn.Module):
    """Logits `[1, classes, T, 1]` of hidden states, sharpened position by position."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x: Tensor, sharpness: Tensor) -> Tensor:
        """From `[1, 128, T, 1]` and a factor for each position, `[1, 1, T, 1]`."""
        logits: Tensor = self.output(x) * sharpness
        return logits


def build(shard: str) -> Conversion:
    """Make a shard. Real weights would be loaded here, and named in the manifest's `depends`."""
    torch.manual_seed(2026)
    x = Port("x", (1, WIDTH, "T", 1))
    if shard == "classifier":
        sharpness, logits = Port("sharpness", (1, 1, "T", 1)), Port("logits", (1, CLASSES, "T", 1))
        return Conversion(Classifier(), (x, sharpness), (logits,))
    # fp16 modules convert several times faster than float32 ones.
    return Conversion(FeedForward().half(), (x,), (Port("y", x.shape),))
