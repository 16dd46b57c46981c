"""The tokenizer of a published checkpoint: `tokenizer.json` and the chat template beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pytest_ane.core.errors import SourceError
from pytest_ane.sources.checkpoint import read_json
from pytest_ane.sources.tokenizer import SourceTokenizer


def read_tokenizer(folder: Path) -> SourceTokenizer:
    """Read `tokenizer.json`, and from `tokenizer_config.json` the special tokens and the template.

    A template in a file of its own, `chat_template.jinja`, wins.

    Raises:
        SourceError: there is no `tokenizer.json`, or it is damaged.
    """
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.is_file():
        raise SourceError(
            f"{folder}: no tokenizer.json beside the weights; add it, or give prompts as ids."
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
    found = entry.get("content") if isinstance(entry, dict) else entry
    return found if isinstance(found, str) else None


def _template(file: Path, config: dict[str, Any]) -> str | None:
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: cannot be read ({error}).") from error
    found = config.get("chat_template")
    if isinstance(found, list):  # Several by name; `default` is the one for plain conversations.
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
