"""A source's tokenizer through the `tokenizers` package, rebuilt from GGUF's metadata or read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources._vocabularies import (
    CLS,
    KINDS,
    SEP,
    UNKNOWN,
    byte_level_bpe,
    cased,
    published,
    sentencepiece,
    wordpiece,
)
from pytest_ane.models.sources.chat_template import TemplateError, render
from pytest_ane.models.sources.files import read_json

_ENDS = ("bos", "eos")
_SENTENCEPIECE, _MERGED_PIECES = "llama", "gemma4"
_BYTE_LEVEL, _WORDPIECE = "gpt2", "bert"
_REASON = 400
"""Characters of what the `tokenizers` package says."""


class SourceTokenizer:
    """A source's tokenizer and chat template.

    Args:
        tokenizer: of the `tokenizers` package.
        template: the chat template, in jinja.
        origin: where both come from, for messages.
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
                return cls(_words(value, origin), None, origin, around=_sentence(value))
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
    """Let whatever `tokenizers` raises be a `SourceError`, its text in the sentence's `{}`.

    It raises bare exceptions, and where its Rust code panics, pyo3's `PanicException`, which is no
    `Exception`; the panic's own report is kept off stderr.
    """
    try:
        with _silent_stderr():
            yield
    except SourceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = str(error) if len(str(error)) <= _REASON else f"{str(error)[:_REASON]}..."
        raise SourceError(sentence.replace("{}", why, 1)) from error


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Nothing that code outside of Python writes to stderr is seen; the calls take milliseconds."""
    try:
        before = os.dup(2)
    except OSError:  # It was closed before Python started.
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


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


def _words(value: Callable[[str], Any], origin: str) -> Tokenizer:
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
