"""A WordPiece vocabulary as llama.cpp's converter stores it, rebuilt as BERT publishes it.

The converter writes U+2581 before a token that begins a word, and leaves out the `##` of one that
goes on (`BertModel.set_vocab` of `conversion/bert.py`). llama.cpp puts CLS before a text and SEP
after it, whatever `add_bos_token` says, and has ids for both where the file has none
(`src/llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CLS, SEP, UNKNOWN = 101, 102, 100
"""Ids where a file tells none."""
_CONTROL, _USER_DEFINED = 3, 4
_BEGINS, _CONTINUES = "\u2581", "##"


def published(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """Tokens by id as BERT's `vocab.txt` has them; `ValueError` for lists of different lengths."""
    return [_published(*each) for each in zip(tokens, types, strict=True)]


def cased(words: Sequence[str]) -> str | None:
    """A word in upper case, which no vocabulary for texts in lower case has."""
    return next((word for word in words if word.isalpha() and word != word.lower()), None)


def wordpiece(
    words: Sequence[str],
    types: Sequence[int],
    unknown: int,
    *,
    lowercase: bool,
    strip_accents: bool | None,
) -> Tokenizer:
    """A tokenizer of words and what goes on in them.

    Args:
        words: by id, as `published`.
        types: of `tokenizer.ggml.token_type`.
        unknown: the id of what no token fits; `IndexError` where there is no such id.
        lowercase: whether a text becomes so.
        strip_accents: whether accents are taken off; None for as `lowercase`.
    """
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=words[unknown]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(_CONTINUES)
    kinds = list(zip(words, types, strict=True))
    control = [AddedToken(word, normalized=False) for word, kind in kinds if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens([AddedToken(word) for word, kind in kinds if kind == _USER_DEFINED])
    return tokenizer


def _published(token: str, kind: int) -> str:
    if kind == _CONTROL:
        return token
    return token[1:] if token.startswith(_BEGINS) else f"{_CONTINUES}{token}"
