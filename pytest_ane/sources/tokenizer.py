"""A source's tokenizer through the `tokenizers` package, and byte-level BPE rebuilt from GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pytest_ane.core.errors import SourceError
from pytest_ane.sources.checkpoint import read_json

# GGUF `tokenizer.ggml.token_type`: 3 marks control tokens, 4 user-defined ones.
_SPECIAL = (3, 4)


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level()])


# GGUF `tokenizer.ggml.pre` names how text is split before merges are applied.
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _byte_level,
    "default": _byte_level,
    "smollm": _smollm,
}


class SourceTokenizer:
    """A source's tokenizer and chat template.

    Args:
        tokenizer: of the `tokenizers` package.
        template: the chat template, in jinja.
        origin: where both come from, for messages.
        specials: `bos_token` and others by the names that templates call them.
        completes: whether a text gets what the tokenizer itself adds, such as a first BOS token.
        exact: whether a text's tokens spell the text again, as those of bytes do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        origin: str,
        specials: Mapping[str, str] | None = None,
        completes: bool = False,
        exact: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._origin = origin
        self._specials = specials or {}
        self._completes = completes
        self._exact = exact

    @classmethod
    def from_metadata(cls, value: Callable[[str], Any], origin: str) -> SourceTokenizer:
        """Rebuild from GGUF keys `tokenizer.ggml.*`; `SourceError` for another kind."""
        kind, pre = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre")
        if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
            raise SourceError(
                f"{origin}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; "
                f"give prompts as ids, or use one of: {', '.join(sorted(_PRE_TOKENIZERS))}."
            )
        tokens, merges, types = (
            value(f"tokenizer.ggml.{key}") for key in ("tokens", "merges", "token_type")
        )
        try:
            tokenizer = _byte_pair(tokens, merges, types)
        # `tokenizers` raises bare exceptions where merges and vocabulary disagree.
        except Exception as error:
            raise SourceError(
                f"{origin}: its tokenizer is damaged ({error}); fetch the file again, or give "
                "prompts as ids."
            ) from error
        tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
        template = _optional(value, "tokenizer.chat_template")
        return cls(tokenizer, template, origin, exact=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; `SourceError` where the vocabulary lacks some of it."""
        return self._ids(text, specials=self._completes)

    def chat(self, text: str) -> list[int]:
        """Token ids of one user message in the chat template, up to where the answer begins.

        The template comes from the file, so it runs in jinja's sandbox, with the block settings
        that chat templates are written for.
        """
        if self._template is None:
            raise SourceError(f"{self._origin}: no chat template; give the prompt as text or ids.")
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.globals["raise_exception"] = _refuse
        messages = [{"role": "user", "content": text}]
        try:
            template = sandbox.from_string(self._template)
            rendered = template.render(
                messages=messages, add_generation_prompt=True, **self._specials
            )
        # A template may raise whatever an expression in it does, not jinja's errors alone.
        except Exception as error:
            raise SourceError(
                f"{self._origin}: its chat template fails ({error}); give the prompt as text or "
                "ids."
            ) from error
        # The template writes the special tokens itself.
        return self._ids(rendered, specials=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens kept."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _ids(self, text: str, *, specials: bool) -> list[int]:
        ids = list(self._tokenizer.encode(text, add_special_tokens=specials).ids)
        # `tokenizers` leaves out what the vocabulary lacks without a word.
        if self._exact and (spelled := self.decode(ids)) != text:
            raise SourceError(
                f"{self._origin}: its vocabulary lacks some of {_short(text)}, of which its "
                f"tokenizer makes {_short(spelled)}; give another text, or ids."
            )
        return ids


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _refuse(message: str) -> NoReturn:
    """What templates call as `raise_exception`."""
    raise ValueError(message)


def _byte_pair(tokens: list[str], merges: list[str], types: list[int]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [_merge(line) for line in merges]))
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    return tokenizer


def _merge(line: str) -> tuple[str, str]:
    left, space, right = line.partition(" ")
    if not space:
        raise ValueError(f"the merge {line!r} is not a pair")
    return left, right


def _optional(value: Callable[[str], Any], key: str) -> str | None:
    try:
        return str(value(key))
    except SourceError:
        return None


def read_tokenizer(folder: Path) -> SourceTokenizer:
    """Read `tokenizer.json`, and from `tokenizer_config.json` the special tokens and the template.

    A template in a file of its own, `chat_template.jinja`, wins.

    Raises:
        SourceError: there is no `tokenizer.json`, or it is damaged.
    """
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.is_file():
        raise SourceError(
            f"{folder}: no tokenizer.json in the weights' folder; add it, or give prompts as ids."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare exceptions.
        raise SourceError(
            f"{path}: the tokenizer is damaged or of a kind that is not known ({error}); fetch it "
            "again, or give prompts as ids."
        ) from error
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
    """A token's text, which stands alone or as the `content` of a table."""
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
