"""SentencePiece vocabularies rebuilt from GGUF's metadata, against SentencePiece itself."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as pb

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.tokenizer import SourceTokenizer
from tests.models.sources.test_tokenizer import lookup

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


def metadata(model: bytes, space_prefix: bool) -> dict[str, Any]:
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


def build(values: Mapping[str, Any], **changes: Any) -> SourceTokenizer:
    own = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return SourceTokenizer.from_metadata(lookup({**values, **own}), "small.gguf")


MODELS = {prefix: train(prefix) for prefix in (False, True)}
OURS = {prefix: build(metadata(model, prefix)) for prefix, model in MODELS.items()}
THEIRS = {
    prefix: sentencepiece.SentencePieceProcessor(model_proto=model)
    for prefix, model in MODELS.items()
}
PIECES = [(p.score, p.piece) for p in pb.ModelProto.FromString(MODELS[False]).pieces if p.type == 1]
MERGED = build(
    metadata(MODELS[False], False),
    model="gemma4",
    scores=[-1000.0] * len(metadata(MODELS[False], False)["tokenizer.ggml.scores"]),
    merges=[
        f"{piece[:cut]} {piece[cut:]}"
        for _, piece in sorted(PIECES, key=lambda each: -each[0])
        for cut in range(1, len(piece))
        if {piece[:cut], piece[cut:]} <= {piece for _, piece in PIECES}
    ],
    add_space_prefix=None,
)
WORDS = st.sampled_from(
    [*" ".join(SENTENCES).split(), " ", "  ", "\n\n", "<div>", "€", "🦙", "\x01"]
)


@pytest.mark.parametrize("space_prefix", [False, True])
@given(text=st.lists(WORDS, min_size=1).map("".join) | st.text("ab é\n", min_size=1))
def test_texts_are_split_as_sentencepiece_splits_them(space_prefix: bool, text: str) -> None:
    first, *ids = OURS[space_prefix].encode(text)
    assert first == 1  # llama.cpp begins with BOS unless told otherwise
    if space_prefix and ("<div>" in text or "\n\n" in text):
        return  # llama.cpp puts a space after each token of a user's, SentencePiece only before all
    assert ids == THEIRS[space_prefix].encode(text)
    assert OURS[space_prefix].decode(ids) == text


@given(text=st.lists(WORDS, min_size=1).map("".join) | st.text("ab é\n", min_size=1))
def test_merges_that_the_file_lists_are_taken_in_its_order(text: str) -> None:
    """As Gemma 4's files have them, whose scores are all alike."""
    assert MERGED.encode(text) == OURS[False].encode(text)


def test_a_merge_that_is_no_pair_is_one_sentence() -> None:
    with pytest.raises(SourceError, match="the merge 'the' is not a pair"):
        build(metadata(MODELS[False], False), model="gemma4", merges=["the"])


def test_control_tokens_in_a_text_are_themselves() -> None:
    tokens = metadata(MODELS[False], False)["tokenizer.ggml.tokens"]
    assert OURS[False].encode("<turn>the")[:2] == [1, tokens.index("<turn>")]


def test_ends_are_added_as_the_file_says() -> None:
    values = metadata(MODELS[False], False)
    text = OURS[False].encode("the cat")[1:]
    assert build(values, add_bos_token=False).encode("the cat") == text
    assert build(values, add_eos_token=True).encode("the cat") == [1, *text, 2]


def test_an_end_that_has_no_number_is_refused() -> None:
    with pytest.raises(SourceError, match="adds a token that it does not name"):
        build(metadata(MODELS[False], False), bos_token_id=None)


def test_templates_know_the_ends() -> None:
    values = metadata(MODELS[False], False)
    template = "{{ bos_token }}<turn>{{ messages[0].content }}{{ eos_token }}"
    ours = SourceTokenizer.from_metadata(
        lookup({**values, "tokenizer.chat_template": template}), "small.gguf"
    )
    begin, turn, *text, end = ours.chat("the cat")
    assert (begin, end) == (1, 2)
    assert [begin, *text] == ours.encode("the cat")
    assert turn == ours.encode("<turn>")[1]


def test_a_vocabulary_without_bytes_is_refused() -> None:
    values = metadata(MODELS[False], False)
    types = [1 if kind == 6 else kind for kind in values["tokenizer.ggml.token_type"]]
    with pytest.raises(SourceError, match="it has 0 tokens of single bytes, not 256"):
        build(values, token_type=types)


@pytest.mark.parametrize("scores", [[], [0.0], "no numbers"])
def test_scores_that_do_not_fit_are_one_sentence(scores: Any) -> None:
    with pytest.raises(SourceError, match=r"small\.gguf: its tokenizer is damaged"):
        build(metadata(MODELS[False], False), scores=scores)
