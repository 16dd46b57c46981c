"""Vocabularies as GGUF stores them, rebuilt as tokenizers of the `tokenizers` package.

Byte-level BPE: `tokenizer.ggml.pre` names how a text is split before merges are applied. The
expressions are those of the models' own `tokenizer.json`, which llama.cpp's `src/llama-vocab.cpp`
quotes beside forms that its own engine understands (`llm_tokenizer_bpe`); the same file says which
kinds take a word that is a token as it is, and which put BOS before a text.

SentencePiece: pieces with scores, merged best score first. Every way to split a piece in two is a
merge, in the order of the pieces' scores. So SentencePiece's own BPE merges (`src/bpe_model.cc`),
and llama.cpp's (`llm_tokenizer_spm`). Gemma 4's files list the merges instead, those of the
published `tokenizer.json`.

WordPiece: llama.cpp's converter writes U+2581 before a token that begins a word, and leaves out
the `##` of one that goes on (`BertModel.set_vocab` of `conversion/bert.py`); tokens are put back
as BERT publishes them. llama.cpp puts CLS before a text and SEP after it, whatever `add_bos_token`
says, and has ids for both where the file has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Of `tokenizer.ggml.token_type`."""
_SPACE = "\u2581"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Words, of numbers so many digits, and signs with the line breaks after them."""
    marks = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return "|".join((_ENGLISH, _BEFORE + r"\p{L}+", digits, marks, _SPACES))


def _cased(digits: str, ending: str = "") -> str:
    """Likewise, and words are split before what begins in upper case."""
    words = (f"{_BEFORE}{_UPPER}*{_LOWER}+{ending}", f"{_BEFORE}{_UPPER}+{_LOWER}*{ending}")
    return "|".join((*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES))


@dataclass(frozen=True)
class Kind:
    """How text becomes words before merges are applied.

    Attributes:
        splits: expressions; each cuts what those before it left into matches and what is between.
        whole: whether a word that is a token is that token, whatever its merges.
        begins: whether a text begins with BOS where the file does not tell.
    """

    splits: tuple[str, ...]
    whole: bool = False
    begins: bool = False


_LLAMA3 = Kind((_words(r"\p{N}{1,3}"),), whole=True, begins=True)
_LLAMA3_MERGED = Kind(_LLAMA3.splits)
_QWEN2 = Kind((_words(r"\p{N}"),))
_DIGITS = Kind((r"\p{N}", _GPT2))
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dbrx": _LLAMA3_MERGED,
        "deepseek-r1-qwen": _QWEN2,
        "default": Kind((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "gpt-2": Kind((_GPT2,)),
        "gpt-4o": Kind((_cased(r"\p{N}{1,3}", f"{_ENGLISH}?"),)),
        "llama-bpe": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama3": _LLAMA3,
        "qwen2": _QWEN2,
        "refact": _DIGITS,
        "smaug-bpe": _LLAMA3_MERGED,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "tekken": Kind((_cased(r"\p{N}"),), whole=True, begins=True),
    }
)
"""By `tokenizer.ggml.pre`: Llama 3, Qwen2 and 3, Phi-4 (`dbrx`, `gpt-4o`), Mistral Nemo and later
(`tekken`), SmolLM, SmolLM3 (`smaug-bpe`), Granite (`refact`, `dbrx`), GPT-2."""


def byte_level_bpe(
    tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], kind: Kind
) -> Tokenizer:
    """A tokenizer of bytes, written as GPT-2 writes them.

    Merges are pairs in their order, a space between the two; `types` those of
    `tokenizer.ggml.token_type`. `ValueError` for lists of different lengths, or a merge that is no
    pair; `tokenizers`' own bare exception for a merge of what is no token.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [pair(line) for line in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=kind.whole))
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, of in zip(tokens, types, strict=True) if of in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in kind.splits]
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, in_bytes])
    return tokenizer


def pair(line: str) -> tuple[str, str]:
    """A merge as GGUF writes it, a space between the two; `ValueError` for anything else."""
    left, space, right = line.partition(" ")
    if not space:
        raise ValueError(f"the merge {line!r} is not a pair")
    return left, right


def sentencepiece(
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    merges: Sequence[str] | None = None,
    *,
    space_prefix: bool,
) -> Tokenizer:
    """A tokenizer of pieces, spaces written as U+2581.

    The piece with the largest score is merged first, unless `merges` tell. With a `space_prefix` a
    text gets a space at its beginning. `ValueError` for lists of different lengths, or no tokens
    for the bytes of what is in no piece.
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


CLS, SEP, UNKNOWN = 101, 102, 100
"""Ids where a file tells none."""
_CONTINUES = "##"


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
    """A tokenizer of words, as `published`, and of what goes on in them.

    `unknown` is the id of what no token fits, `IndexError` where there is no such id;
    `strip_accents` is as `lowercase` where it is None.
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
    return token[1:] if token.startswith(_SPACE) else f"{_CONTINUES}{token}"
