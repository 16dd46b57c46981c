"""A byte-level BPE vocabulary as GGUF stores it, split before it is merged as the file names it.

`tokenizer.ggml.pre` names a kind of splitting. The expressions are those of the models' own
`tokenizer.json`, which llama.cpp's `src/llama-vocab.cpp` quotes beside forms that its own engine
understands (`llm_tokenizer_bpe`); the same file says which kinds take a word that is a token as it
is, and which put BOS before a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

_SPECIAL = (3, 4)
"""Of `tokenizer.ggml.token_type`: control tokens, and user-defined ones."""
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
    """A tokenizer of bytes.

    Args:
        tokens: by id, bytes written as GPT-2 writes them.
        merges: pairs in their order, a space between the two.
        types: of `tokenizer.ggml.token_type`.
        kind: one of `KINDS`.

    Raises:
        ValueError: lists of different lengths, or a merge that is no pair.
        Exception: `tokenizers`' own, for a merge of what is no token.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [pair(line) for line in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=kind.whole))
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, of in zip(tokens, types, strict=True) if of in _SPECIAL]
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
