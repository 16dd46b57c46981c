"""A SentencePiece vocabulary as GGUF stores it: pieces with scores, merged best score first.

Rebuilt as byte-pair encoding: every way to split a piece in two is a merge, in the order of the
pieces' scores. So SentencePiece's own BPE merges (`src/bpe_model.cc`), and llama.cpp's
(`llm_tokenizer_spm` in `src/llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"


def sentencepiece(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, space_prefix: bool
) -> Tokenizer:
    """A tokenizer of pieces.

    Args:
        tokens: pieces by id, spaces written as U+2581.
        scores: the piece with the largest is merged first.
        types: of `tokenizer.ggml.token_type`.
        space_prefix: whether a text gets a space at its beginning.

    Raises:
        ValueError: lists of different lengths, or no tokens for the bytes of what is in no piece.
    """
    kinds = list(zip(tokens, scores, types, strict=True))
    if types.count(_BYTE) != 256:
        raise ValueError(f"it has {types.count(_BYTE)} tokens of single bytes, not 256")
    unknown = next((token for token, _, kind in kinds if kind == _UNKNOWN), None)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    normal = {token: score for token, score, kind in kinds if kind == _NORMAL}
    merges = [
        (token[:cut], token[cut:])
        for token in sorted(normal, key=normal.__getitem__, reverse=True)
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", _SPACE)
    first = [normalizers.Prepend(_SPACE)] if space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*first, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    for special in (_CONTROL, _USER_DEFINED):
        added = [AddedToken(token, normalized=False) for token, _, kind in kinds if kind == special]
        (tokenizer.add_special_tokens if special == _CONTROL else tokenizer.add_tokens)(added)
    return tokenizer
