"""The published MiniLM: its embeddings against transformers', and its example through the gates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.manifest import Model, load
from pytest_ane.models.families import get_family
from pytest_ane.models.families.base import Cut
from pytest_ane.models.families.bert import BertModel
from pytest_ane.models.sources import open_source, source_path
from tests.forked import Forge
from tests.models.families.bert.oracle import converted, difference, expected, referred

ROOT = Path(__file__).parents[3]
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
    assert "behaviour 1/1, compression 7/7, fidelity 7/7" in done.stdout
