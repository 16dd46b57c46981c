"""Packages that a user may have made of a BERT: the gates pass right ones and no wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ane.make.convert import convert
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.models.families.bert import BertModel
from pytest_ane.models.families.bert.ane import AneBlock, AnePooling
from pytest_ane.models.families.bert.weights import BlockWeights
from tests.forked import Forge
from tests.models.families.bert.oracle import LENGTH, Case

CASE = Case("minilm", pooling="mean_tokens")
MANIFEST = """
[models.{name}]
family = "bert"
source = {{ path = "checkpoint" }}
shards = "L00-L01, pooling"
max-tokens = {length}

[models.{name}.shard."{shard}"]
artifact = "{name}.mlpackage"
reference = "float32"

[[models.{name}.prompts]]
name = "short"
ids = [3, 1, 4, 1, 5, 9]
[[models.{name}.prompts]]
name = "one"
ids = [2]
[[models.{name}.prompts]]
name = "long"
ids = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 4]
[[models.{name}.prompts]]
name = "other"
ids = [57, 44, 31, 19]
"""


class MaskIgnored(AneBlock):
    """Adds a mask of 1 to scores, where -1e4 is meant."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, mask * -1e-4)


class Causal(AneBlock):
    """Lets no position see a later one, as in a decoder."""

    later: Tensor

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        later = torch.full((LENGTH, LENGTH), -1e4).triu(1)
        self.register_buffer("later", later[None, None])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, mask + self.later)


class PreNorm(AneBlock):
    """Norms what enters the halves, in place of the sums."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        y: Tensor = x + self.down_proj(nn.functional.gelu(self.up_proj(self.ffn_norm(x))))
        return y


class OfPadding(nn.Module):
    """Pools padding too."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = (x + mask[:, :, :, :1] * 0).mean(dim=2, keepdim=True)
        return y / (y * y).sum(dim=1, keepdim=True).sqrt()


class First(OfPadding):
    """Gives the first position, where the mean is meant."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x[:, :, :1] + mask[:, :, :, :1] * 0
        return y / (y * y).sum(dim=1, keepdim=True).sqrt()


def spoilt(w: BlockWeights) -> BlockWeights:
    """Heads 0 and 1 of the values change places."""
    rows = torch.cat([torch.arange(8, 16), torch.arange(8), torch.arange(16, 32)])
    assert w.v.bias is not None
    return replace(w, v=w.v._replace(weight=w.v.weight[rows], bias=w.v.bias[rows]))


Make = Callable[[BertModel], nn.Module]
PACKAGES: dict[str, tuple[str, Make]] = {
    "right-block": ("L01", lambda m: AneBlock(m.config, m.weights.block(1))),
    "right-pooling": ("pooling", lambda m: AnePooling(m.config)),
    "mask-ignored": ("L01", lambda m: MaskIgnored(m.config, m.weights.block(1))),
    "causal": ("L01", lambda m: Causal(m.config, m.weights.block(1))),
    "pre-norm": ("L01", lambda m: PreNorm(m.config, m.weights.block(1))),
    "spoilt": ("L01", lambda m: AneBlock(m.config, spoilt(m.weights.block(1)))),
    "first": ("pooling", lambda m: First()),
    "of-padding": ("pooling", lambda m: OfPadding()),
    "no-norm": ("pooling", lambda m: AnePooling(replace(m.config, normalized=False))),
}


@pytest.mark.slow
def test_right_packages_pass_and_wrong_ones_fail(tmp_path: Path, forge: Forge) -> None:
    """Both by themselves and as part of the stack."""
    (tmp_path / "checkpoint").mkdir()
    CASE.save(tmp_path / "checkpoint")
    model = CASE.open(tmp_path / "checkpoint")
    for name, (shard, make) in PACKAGES.items():
        conversion = replace(model.conversion(shard), module=make(model))
        with converter_notes():
            package = convert(conversion, max_tokens=LENGTH, target="iOS18", subject=name)
            package.save(str(tmp_path / f"{name}.mlpackage"))
    (tmp_path / "shards.toml").write_text(
        "".join(
            MANIFEST.format(name=name, shard=shard, length=LENGTH)
            for name, (shard, _) in PACKAGES.items()
        )
    )
    command = ["pytest", "--ane-shards=all", "-m", "gate", "--ane-cache=c"]
    command += ["-k", "fidelity or behaviour", "-v"]
    done = forge.run(command, tmp_path)
    lines = [line.split() for line in done.stdout.splitlines()]
    verdicts = {(words[1], words[2]): words[0].lower() for words in lines if len(words) > 2}
    for name, (shard, _) in PACKAGES.items():
        wanted = "passed" if name.startswith("right") else "failed"
        assert verdicts[f"{name}:{shard}", "fidelity"] == wanted, (name, done.stdout)
        assert verdicts[name, "behaviour"] == wanted, (name, done.stdout)
