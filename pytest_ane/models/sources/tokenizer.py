"""A source's tokenizer, by transformers: a checkpoint's own, or built from GGUF's metadata.

Of GGUF transformers' converter (`transformers.integrations.gguf.gguf_tokenizer_mapping`) gives
most; ours is what it lacks or has otherwise, as llama.cpp's `src/llama-vocab.cpp` reads its files.
transformers takes seconds to import, so it is imported where a tokenizer is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.chat_template import TemplateError, render

_ADDED = (_CONTROL, _USER_DEFINED) = 3, 4
"""Of `tokenizer.ggml.token_type`."""
_REASON = 400
"""Characters of what a library says."""


class SourceTokenizer:
    """One of transformers', from `origin`; `exact` where tokens spell the text again."""

    def __init__(self, tokenizer: Any, origin: str, exact: bool = False) -> None:
        self._tokenizer, self._origin, self._exact = tokenizer, origin, exact

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; `SourceError` where the vocabulary lacks some of it."""
        return self._ids(text, specials=True)

    def chat(self, text: str) -> list[int]:
        """Token ids of one user message in the chat template, up to where the answer begins.

        The template comes from the file, so it runs in jinja's sandbox, within limits of time,
        memory and text; `SourceError` where it fails or goes beyond one.
        """
        try:
            template = self._tokenizer.get_chat_template()
        except ValueError as error:
            raise SourceError(
                f"{self._origin}: no chat template; give the prompt as text or ids."
            ) from error
        try:
            rendered = render(template, text, self._tokenizer.special_tokens_map)
        except TemplateError as error:
            raise SourceError(
                f"{self._origin}: its chat template fails ({error}); give the prompt as text or "
                "ids."
            ) from error
        # The template writes the special tokens itself.
        return self._ids(rendered, specials=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens kept."""
        with _refusing(f"{self._origin}: its tokenizer fails ({{}}); give prompts as ids."):
            return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _ids(self, text: str, *, specials: bool) -> list[int]:
        with _refusing(f"{self._origin}: its tokenizer fails ({{}}); give prompts as ids."):
            ids = list(self._tokenizer.encode(text, add_special_tokens=specials))
            own = self._tokenizer.encode(text, add_special_tokens=False) if self._exact else []
        # `tokenizers` leaves out what the vocabulary lacks without a word.
        if self._exact and (spelled := self.decode(own)) != text:
            raise SourceError(
                f"{self._origin}: its vocabulary lacks some of {_short(text)}, of which its "
                f"tokenizer makes {_short(spelled)}; give another text, or ids."
            )
        return ids


@contextmanager
def _refusing(sentence: str) -> Iterator[None]:
    """Let what the libraries raise be a `SourceError`; a panic of Rust is no `Exception`."""
    try:
        with quiet():
            yield
    except SourceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        why = why if len(why) <= _REASON else f"{why[:_REASON]}..."
        raise SourceError(sentence.replace("{}", why, 1)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress and no advice of transformers meanwhile."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def read_tokenizer(path: Path) -> SourceTokenizer:
    """A checkpoint's tokenizer as `AutoTokenizer` has it, or that of a `tokenizer.json` alone.

    Nothing is fetched, and no code of a checkpoint runs; `SourceError` where it is missing,
    damaged, or of a kind that transformers does not know.
    """
    folder = path if path.is_dir() else path.parent
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise SourceError(f"{file}: no such file; add the tokenizer, or give prompts as ids.")
    with _refusing(
        f"{file}: the tokenizer is damaged or of a kind that is not known ({{}}); fetch "
        "it again, or give prompts as ids."
    ):
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        told: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        if path.is_dir():
            return SourceTokenizer(AutoTokenizer.from_pretrained(folder, **told), str(folder))
        told["tokenizer_file"] = str(file)
        return SourceTokenizer(PreTrainedTokenizerFast.from_pretrained(folder, **told), str(folder))


# GGUF. transformers has no split for `_DIGITS`, which are as GPT-2's after each digit is cut off,
# and takes GPT-2's for whatever it does not know; what is not known here is refused.

_PLAIN, _DIGITS = ("default", "gpt-2"), ("refact", "smollm", "starcoder")
_MERGED = ("dbrx", "smaug-bpe")
_SENTENCEPIECE = ("llama", "gemma4")
CLS, SEP, UNKNOWN = 101, 102, 100
"""Ids where a file tells none."""


def gguf_tokenizer(value: Callable[[str], Any], origin: str) -> SourceTokenizer:
    """A tokenizer of GGUF keys `tokenizer.ggml.*`; `SourceError` for a kind that is not known."""

    def told(key: str, default: Any = None) -> Any:
        try:
            return value(f"tokenizer.{key}")
        except SourceError:
            return default

    kind, pre = told("ggml.model"), told("ggml.pre")
    with _refusing(
        f"{origin}: its tokenizer is damaged ({{}}); fetch the file again, or give prompts as ids."
    ):
        from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

        splits = mapping.GGUF_PRE_TOKENIZER_SPLITS
        words = {*splits, *_PLAIN, *_DIGITS}
        if kind not in (*_SENTENCEPIECE, "bert") and not (kind == "gpt2" and pre in words):
            raise SourceError(
                f"{origin}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; "
                f"give prompts as ids, or use one of: {', '.join(sorted(words))}."
            )
        names = {
            "bert": ("tokens", "token_type"),
            "llama": ("tokens", "token_type", "scores"),
            "gemma4": ("tokens", "token_type", "scores", "merges"),
            "gpt2": ("tokens", "token_type", "merges"),
        }
        lists = {name: value(f"tokenizer.ggml.{name}") for name in names[kind]}
        if len({len(each) for name, each in lists.items() if name != "merges"}) > 1:
            raise ValueError("its lists of tokens are of different lengths")
        if odd := [merge for merge in lists.get("merges", ()) if merge.count(" ") != 1]:
            raise ValueError(f"the merge {odd[0]!r:.100} is not a pair")
        if kind == "bert":
            return SourceTokenizer(_word_pieces(lists, told, origin), origin)
        whole = {n for n in splits if splits[n] == splits["llama-bpe"]} - {*_MERGED} | {"tekken"}
        if kind == "gpt2":
            tokenizer = _bytes(lists, pre, pre in whole, mapping)
        else:
            # Its choice by architecture heeds no `add_space_prefix`, and drops one of the spaces
            # that a text begins with; Phi 3's and Gemma's are SentencePiece with it and without.
            prefix = told("ggml.add_space_prefix", kind == "llama")
            build = mapping.select_tokenizer_builder("phi3" if prefix else "gemma3", kind)
            tokenizer = mapping.add_gguf_special_tokens(build(lists), lists)
        tokenizer.chat_template = told("chat_template")
        # As llama.cpp, where the file does not tell.
        begins = kind != "gpt2" or pre in whole
        for end, default in (("bos", begins), ("eos", False)):
            index, added = told(f"ggml.{end}_token_id"), told(f"ggml.add_{end}_token", default)
            if added and index is None:
                raise ValueError("it adds a token that it does not name")
            setattr(tokenizer, f"{end}_token", None if index is None else lists["tokens"][index])
            setattr(tokenizer, f"add_{end}_token", bool(added))
    return SourceTokenizer(tokenizer, origin, exact=kind == "gpt2")


def _bytes(lists: dict[str, Any], pre: str, whole: bool, mapping: Any) -> Any:
    """Byte-level BPE, in which a word that is a token is that token if `whole`."""
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import GPT2Tokenizer

    vocabulary = {token: index for index, token in enumerate(lists["tokens"])}
    no_ends: dict[str, Any] = dict.fromkeys(("unk_token", "bos_token", "eos_token"))
    tokenizer = GPT2Tokenizer(vocabulary, mapping.get_merges(lists), **no_ends)
    mapping.set_split_regex(tokenizer, {"pre_tokenizer_type": pre})
    backend: Any = tokenizer.backend_tokenizer
    backend.model.ignore_merges = whole
    if pre in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    kinds = zip(lists["tokens"], lists["token_type"], strict=True)
    backend.add_special_tokens([AddedToken(t, normalized=False) for t, k in kinds if k in _ADDED])
    return tokenizer


def _word_pieces(lists: dict[str, Any], told: Callable[..., Any], origin: str) -> Any:
    """BERT's WordPiece, which transformers' converter does not know."""
    from tokenizers import AddedToken
    from transformers import BertTokenizer

    kinds = lists["token_type"]
    words = [
        t if kind == _CONTROL else t[1:] if t.startswith("\u2581") else f"##{t}"
        for t, kind in zip(lists["tokens"], kinds, strict=True)
    ]
    lowercase = told("ggml.normalizer.lowercase")
    upper = next((word for word in words if word.isalpha() and word != word.lower()), None)
    if lowercase is None and upper:
        raise SourceError(
            f"{origin}: its vocabulary has the word {upper!r:.50} in upper case, and no "
            "tokenizer.ggml.normalizer.lowercase says whether texts keep theirs; give prompts as "
            "ids, or name the folder of the published checkpoint."
        )
    first = told("ggml.bos_token_id", told("ggml.cls_token_id", CLS))  # Older files have it so.
    last, unknown = told("ggml.seperator_token_id", SEP), told("ggml.unknown_token_id", UNKNOWN)
    if not 0 <= min(first, last, unknown) <= max(first, last, unknown) < len(words):
        raise ValueError(
            f"it has {len(words)} tokens, and puts {first} and {last} around a text, {unknown} for "
            "what it lacks"
        )
    named = {"cls_token": words[first], "sep_token": words[last], "unk_token": words[unknown]}
    tokenizer: Any = BertTokenizer(
        {word: index for index, word in enumerate(words)},
        do_lower_case=lowercase is not False,
        strip_accents=told("ggml.normalizer.strip_accents"),
        **{"pad_token": None, "mask_token": None, **named},
    )
    own = [(word, kind) for word, kind in zip(words, kinds, strict=True) if kind in _ADDED]
    for kind in _ADDED:
        added = [AddedToken(w, normalized=kind != _CONTROL) for w, k in own if k == kind]
        tokenizer.add_tokens(added, special_tokens=kind == _CONTROL)
    return tokenizer
