"""Text made by others - names in files, messages of tools - so that it can be shown to people."""

from __future__ import annotations


def printable(text: str, longest: int = 1000) -> str:
    """A text in which characters that a terminal would obey are escapes, as Python writes them.

    Line breaks are among them, so the result is one line. A text of more than `longest` characters
    loses its middle to `...`.
    """
    if text.isprintable() and len(text) <= longest:
        return text
    # Shortened before too: a name may be as long as its file.
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in _shortened(text, longest))
    return _shortened("".join(shown), longest)


def _shortened(text: str, longest: int) -> str:
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
