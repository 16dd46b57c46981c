"""A source's tokenizer through the `tokenizers` package, read, or rebuilt from GGUF's metadata.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.chat_template import TemplateError, render
from pytest_ane.models.sources.files import read_json

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
KINDS: Mapping[str, Kind] = {
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


_ENDS = ("bos", "eos")
_SENTENCEPIECE, _MERGED_PIECES = "llama", "gemma4"
_BYTE_LEVEL, _WORDPIECE = "gpt2", "bert"
_REASON = 400
"""Characters of what the `tokenizers` package says."""


class SourceTokenizer:
    """A source's tokenizer and chat template, in jinja; `origin` is where both come from.

    Args:
        specials: `bos_token` and others by the names that templates call them.
        completes: whether a text gets what the tokenizer itself adds, such as a first BOS token.
        exact: whether a text's tokens spell the text again, as those of bytes do.
        around: ids before and after a text that the tokenizer itself does not add.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        origin: str,
        specials: Mapping[str, str] | None = None,
        completes: bool = False,
        exact: bool = False,
        around: tuple[list[int], list[int]] = ([], []),
    ) -> None:
        self._tokenizer, self._template, self._origin = tokenizer, template, origin
        self._specials = specials or {}
        self._completes, self._exact, self._around = completes, exact, around

    @classmethod
    def from_metadata(cls, value: Callable[[str], Any], origin: str) -> SourceTokenizer:
        """Rebuild from GGUF keys `tokenizer.ggml.*`; `SourceError` for another kind."""
        kind, pre = value("tokenizer.ggml.model"), _optional(value, "tokenizer.ggml.pre")
        words = KINDS.get(str(pre)) if kind == _BYTE_LEVEL else None
        if words is None and kind not in (_SENTENCEPIECE, _MERGED_PIECES, _WORDPIECE):
            raise SourceError(
                f"{origin}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; "
                f"give prompts as ids, or use one of: {', '.join(sorted(KINDS))}."
            )
        with _refusing(
            f"{origin}: its tokenizer is damaged ({{}}); fetch the file again, or give "
            "prompts as ids."
        ):
            if kind == _WORDPIECE:
                return cls(_word_pieces(value, origin), None, origin, around=_sentence(value))
            if words is None:
                tokenizer = _pieces(value)
            else:
                tokens, merges, types = _lists(value, "tokens", "merges", "token_type")
                tokenizer = byte_level_bpe(tokens, merges, types, words)
            ids = {name: _optional(value, f"tokenizer.ggml.{name}_token_id") for name in _ENDS}
            specials = {
                f"{name}_token": str(value("tokenizer.ggml.tokens")[index])
                for name, index in ids.items()
                if index is not None
            }
            # llama.cpp's defaults: SentencePiece begins a text with BOS, and some of the others do.
            begins = _flag(value, "add_bos_token", words is None or words.begins)
            ends = _flag(value, "add_eos_token", False)
            around = [ids["bos"]] * begins, [ids["eos"]] * ends
            if None in (*around[0], *around[1]):
                raise ValueError("it adds a token that it does not name")
        template = _optional(value, "tokenizer.chat_template")
        return cls(tokenizer, template, origin, specials, exact=words is not None, around=around)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; `SourceError` where the vocabulary lacks some of it."""
        before, after = self._around
        return [*before, *self._ids(text, specials=self._completes), *after]

    def chat(self, text: str) -> list[int]:
        """Token ids of one user message in the chat template, up to where the answer begins.

        The template comes from the file, so it runs in jinja's sandbox, within limits of time,
        memory and text; `SourceError` where it fails or goes beyond one.
        """
        if self._template is None:
            raise SourceError(f"{self._origin}: no chat template; give the prompt as text or ids.")
        try:
            rendered = render(self._template, text, self._specials)
        except TemplateError as error:
            raise SourceError(
                f"{self._origin}: its chat template fails ({error}); give the prompt as text or "
                "ids."
            ) from error
        # The template writes the special tokens itself.
        return self._ids(rendered, specials=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens kept."""
        with self._using():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _ids(self, text: str, *, specials: bool) -> list[int]:
        with self._using():
            ids = list(self._tokenizer.encode(text, add_special_tokens=specials).ids)
        # `tokenizers` leaves out what the vocabulary lacks without a word.
        if self._exact and (spelled := self.decode(ids)) != text:
            raise SourceError(
                f"{self._origin}: its vocabulary lacks some of {_short(text)}, of which its "
                f"tokenizer makes {_short(spelled)}; give another text, or ids."
            )
        return ids

    def _using(self) -> AbstractContextManager[None]:
        return _refusing(f"{self._origin}: its tokenizer fails ({{}}); give prompts as ids.")


@contextmanager
def _refusing(sentence: str) -> Iterator[None]:
    """Let what `tokenizers` raises be a `SourceError`; a panic of Rust is no `Exception`."""
    try:
        yield
    except SourceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = str(error) if len(str(error)) <= _REASON else f"{str(error)[:_REASON]}..."
        raise SourceError(sentence.replace("{}", why, 1)) from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _lists(value: Callable[[str], Any], *keys: str) -> list[Any]:
    return [value(f"tokenizer.ggml.{key}") for key in keys]


def _pieces(value: Callable[[str], Any]) -> Tokenizer:
    tokens, scores, types = _lists(value, "tokens", "scores", "token_type")
    merged = value("tokenizer.ggml.model") == _MERGED_PIECES
    merges = value("tokenizer.ggml.merges") if merged else None
    space_prefix = _flag(value, "add_space_prefix", not merged)
    return sentencepiece(tokens, scores, types, merges, space_prefix=space_prefix)


def _word_pieces(value: Callable[[str], Any], origin: str) -> Tokenizer:
    tokens, types = _lists(value, "tokens", "token_type")
    words, key = published(tokens, types), "tokenizer.ggml.normalizer.lowercase"
    lowercase = _optional(value, key)
    if lowercase is None and (word := cased(words)):
        raise SourceError(
            f"{origin}: its vocabulary has the word {word!r:.50} in upper case, and no {key} says "
            "whether texts keep theirs; give prompts as ids, or name the folder of the published "
            "checkpoint."
        )
    return wordpiece(
        words,
        types,
        _optional(value, "tokenizer.ggml.unknown_token_id", UNKNOWN),
        lowercase=lowercase is not False,
        strip_accents=_optional(value, "tokenizer.ggml.normalizer.strip_accents"),
    )


def _sentence(value: Callable[[str], Any]) -> tuple[list[int], list[int]]:
    """CLS and SEP, which are before and after a text; older files call the first one so."""
    first = _optional(value, "tokenizer.ggml.cls_token_id", CLS)
    first = _optional(value, "tokenizer.ggml.bos_token_id", first)
    last = _optional(value, "tokenizer.ggml.seperator_token_id", SEP)
    count = len(value("tokenizer.ggml.tokens"))
    if not 0 <= min(first, last) <= max(first, last) < count:
        raise ValueError(f"it has {count} tokens, and puts {first} and {last} around a text")
    return [first], [last]


def _optional(value: Callable[[str], Any], key: str, default: Any = None) -> Any:
    try:
        return value(key)
    except SourceError:
        return default


def _flag(value: Callable[[str], Any], key: str, default: bool) -> bool:
    return bool(_optional(value, f"tokenizer.ggml.{key}", default))


def read_tokenizer(path: Path) -> SourceTokenizer:
    """Read a folder's `tokenizer.json`, or a file of that kind.

    Special tokens and the template are those of `tokenizer_config.json` in its folder; a template
    in a file of its own, `chat_template.jinja`, wins.
    """
    folder = path if path.is_dir() else path.parent
    path = path / "tokenizer.json" if path.is_dir() else path
    settings = folder / "tokenizer_config.json"
    if not path.is_file():
        raise SourceError(f"{path}: no such file; add the tokenizer, or give prompts as ids.")
    with _refusing(
        f"{path}: the tokenizer is damaged or of a kind that is not known ({{}}); fetch "
        "it again, or give prompts as ids."
    ):
        tokenizer = Tokenizer.from_file(str(path))
        # Files of encoders ask for both; padding would count as text, and a cut text is another.
        tokenizer.no_padding()
        tokenizer.no_truncation()
    config = read_json(settings) if settings.is_file() else {}
    specials = {key: _token(config[key]) for key in config if key.endswith("_token")}
    return SourceTokenizer(
        tokenizer,
        _template(folder / "chat_template.jinja", config),
        str(folder),
        {key: token for key, token in specials.items() if token is not None},
        completes=True,
    )


def _token(entry: Any) -> str | None:
    token = entry.get("content") if isinstance(entry, dict) else entry
    return token if isinstance(token, str) else None


def _template(file: Path, config: dict[str, Any]) -> str | None:
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: cannot be read ({error}).") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # Several by name; `default` is the one for plain conversations.
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
