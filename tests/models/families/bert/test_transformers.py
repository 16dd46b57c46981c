"""BERT against transformers: the same from what it saves; and wrong gates are red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.manifest import Model, load
from pytest_ane.models.families import Cut
from pytest_ane.models.families.bert import BertModel
from pytest_ane.models.families.bert._forms import AneBlock, AnePooling, BlockWeights
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources import open_source, source_path
from tests.forked import Forge
from tests.models.families.bert.oracle import (
    CASES,
    LENGTH,
    Case,
    converted,
    expected,
    pooled,
    referred,
)
from tests.models.families.decoder.oracle import difference, prompt

BOUND = 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hidden_states_and_embeddings(case: Case, tmp_path: Path) -> None:
    right, model = case.save(tmp_path), case.open(tmp_path)
    for length in (1, 2, 7, LENGTH):
        ids = prompt(length)
        hidden = expected(right, ids, padding=LENGTH - length)
        assert difference(hidden, expected(right, ids)) <= 1e-5  # The oracle's own mask.
        for own, embedding in (referred(model, ids), converted(model, ids)):
            assert difference(own, hidden) <= BOUND
            assert difference(embedding, pooled(hidden, case)) <= BOUND


def test_names_of_old_checkpoints(tmp_path: Path) -> None:
    """google-bert/bert-base-uncased calls its norms' tensors gamma and beta."""
    case = CASES[4]
    right, file = case.save(tmp_path), tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(old, file)
    ids = prompt(7)
    assert difference(referred(case.open(tmp_path), ids)[0], expected(right, ids)) <= BOUND


def test_a_spoilt_weight_is_seen(tmp_path: Path) -> None:
    case, ids = CASES[0], prompt(7)
    right = case.save(tmp_path)
    right.encoder.layer[1].attention.self.key.weight.data[3] *= 1.05
    assert difference(referred(case.open(tmp_path), ids)[0], expected(right, ids)) > BOUND


def test_every_position_sees_the_later_ones(tmp_path: Path) -> None:
    """So what decoders' gates take for granted, a prefix's states in those of the whole, is not."""
    case = CASES[0]
    case.save(tmp_path)
    model, ids = case.open(tmp_path), prompt(7)
    whole, part = referred(model, ids)[0], referred(model, ids[:5])[0]
    assert np.abs(whole[:5] - part).max() > 0.1


ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples/minilm.toml"


@pytest.fixture(scope="module")
def example() -> Model:
    (model,) = load(EXAMPLE).models
    return model


@pytest.fixture(scope="module")
def minilm(example: Model) -> BertModel:
    family = get_family("bert")
    assert example.source is not None
    source = open_source(example.source, family.spread)
    model = family.open_model(source, Cut(example.ids, example.max_tokens))
    assert isinstance(model, BertModel)
    return model


def test_the_example_is_the_whole_model(minilm: BertModel) -> None:
    assert not minilm.missing
    c = minilm.config
    assert (c.layers, c.width, c.heads, c.pooling, c.normalized) == (6, 384, 12, "mean", True)


@pytest.mark.slow
def test_embeddings_are_transformers(example: Model, minilm: BertModel) -> None:
    import transformers

    assert example.source is not None
    folder = source_path(example.source).parent
    right = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [*example.sentences, *(prompt.text for prompt in example.prompts if prompt.text)]
    for text in texts:
        ids = minilm.source.tokenizer.encode(text)
        assert ids == tokenizer(text)["input_ids"]
        hidden = expected(right, ids, padding=example.max_tokens - len(ids))
        mean = hidden.mean(axis=0, keepdims=True)
        for own, embedding in (referred(minilm, ids), converted(minilm, ids)):
            assert difference(own, hidden) <= 1e-4
            assert np.abs(embedding - mean / np.linalg.norm(mean)).max() <= 1e-5


@pytest.mark.drawn
@pytest.mark.heavy
def test_the_whole_example_is_green(tmp_path: Path, forge: Forge) -> None:
    """As the program's types say; both arithmetics take twice as long, `make examples` has them."""
    command = ["pytest", f"--ane-manifest={EXAMPLE}", "--ane-shards=all"]
    command += ["-m", "gate", f"--ane-cache={tmp_path}", "-p", "no:cacheprovider"]
    command += ["--ane-arithmetic=typed"]
    done = forge.run(command, ROOT)
    assert done.returncode == 0, done.stdout
    assert "22 gates: " in done.stdout


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
