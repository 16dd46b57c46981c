"""A person at a terminal."""

from __future__ import annotations

import io
import sys

import pytest


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Let standard input and output be a terminal where a person types an answer."""
    stdin = io.StringIO(f"{answer}\n")
    for stream in (stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
