"""Byte-level BPE: how each kind of GGUF's `tokenizer.ggml.pre` splits a text, against others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from pytest_ane.models.sources.byte_level_bpe import KINDS, byte_level_bpe
from tests.models.sources.test_tokenizer import BYTES, TOKENS, build, ids

TEXTS = st.text(
    st.sampled_from(" \n\r\t'.,!/aAzZsSéÉ\u0301中ʰǅ019²½_-😀") | st.characters(codec="utf-8")
)


def splits(tokenizer: Tokenizer, text: str) -> list[str]:
    """Words, as slices of the text."""
    assert tokenizer.pre_tokenizer is not None
    return [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def of_kind(name: str) -> Tokenizer:
    return byte_level_bpe(BYTES, [], [1] * len(BYTES), KINDS[name])


TEXT = "I'Ll seeHTTPServer: 12345 x²\n\n  ok!/\n"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "llama-bpe",
            ["I", "'Ll", " seeHTTPServer", ":", " ", "123", "45", " x", "²", "\n\n", " ", " ok",
             "!/\n"],
        ),
        (
            "qwen2",
            ["I", "'Ll", " seeHTTPServer", ":", " ", "1", "2", "3", "4", "5", " x", "²", "\n\n",
             " ", " ok", "!/\n"],
        ),
        (
            "gpt-4o",
            ["I'Ll", " see", "HTTPServer", ":", " ", "123", "45", " x", "²", "\n\n", " ", " ok",
             "!/\n"],
        ),
        (
            "tekken",
            ["I", "'Ll", " see", "HTTPServer", ":", " ", "1", "2", "3", "4", "5", " x", "²",
             "\n\n", " ", " ok", "!/\n"],
        ),
        (
            "smollm",
            ["I", "'", "Ll", " seeHTTPServer", ":", " ", "1", "2", "3", "4", "5", " x", "²",
             "\n\n ", " ok", "!/", "\n"],
        ),
        (
            "gpt-2",
            ["I", "'", "Ll", " seeHTTPServer", ":", " 12345", " x", "²", "\n\n ", " ok", "!/",
             "\n"],
        ),
        (
            "default",
            ["I", "'", "Ll", " seeHTTPServer", ":", " ", "123", "45", " x", "²", "\n\n ", " ok",
             "!/", "\n"],
        ),
    ],
)  # fmt: skip
def test_words(kind: str, words: list[str]) -> None:
    assert splits(of_kind(kind), TEXT) == words


SHARED = sorted(KINDS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys())


@given(text=TEXTS)
def test_words_are_those_of_transformers(text: str) -> None:
    assert len(SHARED) == 9
    for name in SHARED:
        theirs = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), "isolated")
        expected = [text[a:b] for _, (a, b) in theirs.pre_tokenize_str(text)]
        assert splits(of_kind(name), text) == expected


@given(text=TEXTS)
def test_words_are_those_of_the_published_tokenizers(text: str) -> None:
    """GPT-2's, and SmolLM's, which splits digits before."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    for name, theirs in (("gpt-2", plain), ("smollm", digits)):
        expected = [text[a:b] for _, (a, b) in theirs.pre_tokenize_str(text)]
        assert splits(of_kind(name), text) == expected


@given(text=TEXTS)
def test_any_text_comes_back_from_every_kind(text: str) -> None:
    for name in KINDS:
        tokenizer = of_kind(name)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_word_that_is_a_token_is_that_token_in_some_kinds() -> None:
    """No merges lead to it: `ell` is a token, and `e` and `ll` never merge."""
    tokens = [*BYTES, "ll", "ell"]
    for name in KINDS:
        tokenizer = byte_level_bpe(tokens, ["l l"], [1] * len(tokens), KINDS[name])
        whole = name.startswith(("llama", "tekken"))
        assert tokenizer.encode("ell").tokens == (["ell"] if whole else ["e", "ll"])


@pytest.mark.parametrize(
    ("pre", "told", "begins"),
    [
        ("llama-bpe", None, True),
        ("tekken", None, True),
        ("llama-bpe", False, False),
        ("smaug-bpe", None, False),
        ("qwen2", None, False),
        ("qwen2", True, True),
    ],
)
def test_bos_where_the_file_does_not_tell(pre: str, told: bool | None, begins: bool) -> None:
    tokenizer = build(ggml__pre=pre, ggml__bos_token_id=0, ggml__add_bos_token=told)
    assert tokenizer.encode("hello") == [*([0] if begins else []), *ids("hello")]
    # Templates write the tokens themselves.
    assert tokenizer.chat("h") == ids("<user>", "h", "<|end|>", "!")
    assert TOKENS[0] == "<|end|>"
