"""A SentencePiece vocabulary as GGUF stores it: pieces with scores, merged best score first.

Rebuilt as byte-pair encoding: every way to split a piece in two is a merge, in the order of the
pieces' scores. So SentencePiece's own BPE merges (`src/bpe_model.cc`), and llama.cpp's
(`llm_tokenizer_spm` in `src/llama-vocab.cpp`). Gemma 4's files list the merges instead, those of
the published `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from pytest_ane.models.sources.byte_level_bpe import pair

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"


def sentencepiece(
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    merges: Sequence[str] | None = None,
    *,
    space_prefix: bool,
) -> Tokenizer:
    """A tokenizer of pieces.

    Args:
        tokens: pieces by id, spaces written as U+2581.
        scores: the piece with the largest is merged first.
        types: of `tokenizer.ggml.token_type`.
        merges: pairs of pieces with a space between, the first one merged first; None where the
            scores tell.
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
    pairs = _by_score(normal) if merges is None else [pair(merge) for merge in merges]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
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


def _by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    return [
        (token[:cut], token[cut:])
        for token in sorted(scores, key=scores.__getitem__, reverse=True)
        for cut in range(1, len(token))
        if token[:cut] in scores and token[cut:] in scores
    ]
