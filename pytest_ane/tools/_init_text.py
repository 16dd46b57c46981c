"""The text of a manifest that `init` writes, from the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.text import printable


class Made(NamedTuple):
    """A manifest to be written, lines for the person, and the same as data."""

    text: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any]


def render(template: str, **values: object) -> str:
    """A file of `templates`, whose filter `quoted` writes a TOML string."""
    environment = Environment(
        loader=PackageLoader("pytest_ane.tools"), trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"printable": printable, "quoted": quoted}
    return environment.get_template(template).render(values)


def quoted(text: str) -> str:
    """A TOML string; `ManifestError` for a character that no TOML file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ManifestError(
            f"{printable(text)}: its name is no valid text, which shards.toml could not hold; "
            "rename it."
        ) from None
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
