"""Text made by others - names in files, messages of tools - so that it can be shown to people."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 4000
"""Characters of a line that is shown to people; GitHub's runner cuts at 4,096."""
NAME = 200
"""Characters of a name in a table or a list."""

ID = r"[A-Za-z][A-Za-z0-9_.\-]{0,63}"
"""Names of parts and shards: fit for test ids, files and selections (no colon, comma, space)."""
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)")
"""How commands for a CI's log begin: `::error::` at the start of a line, indented or not, and
`##[error]` or `##vso[...]` anywhere in it (github.com/actions/runner, `ActionCommand.cs`)."""


def size_ratio(ratio: float, digits: int = 2) -> str:
    """How many times smaller than fp16, or larger: `1.94x smaller than fp16`."""
    if 0 < ratio < 1:
        return f"{1 / ratio:,.{digits}f}x larger than fp16"
    return f"{ratio:,.{digits}f}x smaller than fp16"


def printable(text: str, longest: int = 1000) -> str:
    """A text in which characters that a terminal would obey are escapes, as Python writes them.

    Line breaks are among them, so the result is one line; so are lone surrogates, which no file
    can hold, and the mark by which a CI would take the line for a command. A text of more than
    `longest` characters loses its middle to `...`.
    """
    if text.isprintable() and len(text) <= longest and not _COMMAND.search(text):
        return text
    # Shortened before too: a name may be as long as its file.
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in _shortened(text, longest))
    return _shortened(_COMMAND.sub(_escaped, "".join(shown)), longest)


def _escaped(mark: re.Match[str]) -> str:
    return f"{mark[1] or ''}\\x{ord(mark[0][-1]):02x}"


def _shortened(text: str, longest: int) -> str:
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def shown(value: Any) -> Any:
    """JSON data with every text as people may read it."""
    if isinstance(value, str):
        return printable(value, LONGEST)
    if isinstance(value, dict):
        return {printable(key, LONGEST): shown(inner) for key, inner in value.items()}
    return [shown(inner) for inner in value] if isinstance(value, list) else value
