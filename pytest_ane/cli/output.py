"""What a command prints: lines for people, or with `--json` the same as data."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pytest_ane.mlprogram.errors import AneError, OutputError
from pytest_ane.mlprogram.text import LONGEST, printable

_quiet = threading.Event()
"""Set while a command runs with `--json`: a program reads its output, and nobody its progress."""


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None in a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def tell(text: str, *, stays: bool = False) -> None:
    """Replace the status line on stderr, if that is a terminal; an empty text erases it.

    One that stays is a line of its own, whole.
    """
    if sys.stderr and sys.stderr.isatty() and not _quiet.is_set():
        line = f"{printable(text)}\n" if stays else printable(text)[:79]
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def confirmed(question: str, options: argparse.Namespace) -> bool:
    """Whether to delete: by `--yes`, or by an answer at the terminal; without either, no."""
    if options.yes:
        return True
    # `None` where a stream was closed before Python started.
    if options.json or not all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        return False
    try:
        return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


Output: TypeAlias = Generator[str, None, Any]
"""What a command's `run` gives: it yields lines, and returns records or plain data for JSON.

Names in files may hold what a terminal obeys, so each line is printed with escapes for that, and
a line of more than 4,000 characters without its middle.
"""


class Failed(NamedTuple):
    """What a command returns that has a result and yet ends with exit code 1.

    `error` is one sentence for stderr; in JSON it stands beside `data`.
    """

    error: str
    data: Mapping[str, Any] = MappingProxyType({})


def execute(options: argparse.Namespace) -> int:
    """Run a parsed command and print its output, as of `write`; its exit code."""
    if options.json:
        _quiet.set()
    try:
        result = _printed(options.run(options))
    except OutputError:
        raise
    except AneError as error:
        result = Failed(str(error))
    finally:
        _quiet.clear()
    failed = isinstance(result, Failed)
    if options.json:
        write(to_json({**result.data, "error": result.error} if failed else result))
    if failed:
        complain(result.error)
    return int(failed)


def complain(sentence: str) -> None:
    """Print an error to stderr, if there is one; it may have several lines."""
    if sys.stderr:
        lines = f"pytest-ane: {sentence}".split("\n")
        print(*(printable(line, LONGEST) for line in lines), sep="\n", file=sys.stderr)


def to_json(data: object) -> str:
    """JSON in ASCII, so that nothing in it moves a terminal's cursor or is a command to a CI.

    Numbers that are not finite become `"NaN"`, `"Infinity"` or `"-Infinity"`.
    """
    from pydantic_core import to_jsonable_python

    from pytest_ane.mlprogram.strict_json import strict

    text = json.dumps(strict(to_jsonable_python(_sound(data), fallback=_plain)), indent=2)
    return text.replace("##", "\\u0023#")  # Only a text can hold these.


def _sound(value: Any) -> Any:
    """Data whose keys are UTF-8, which pydantic requires of them: lone surrogates are escapes."""
    if isinstance(value, Mapping):
        keys = (str(key).encode(errors="backslashreplace").decode() for key in value)
        return dict(zip(keys, map(_sound, value.values()), strict=True))
    return [*map(_sound, value)] if type(value) in (list, tuple) else value


def _plain(value: Any) -> Any:
    """Data of what pydantic does not know: read-only mappings, and numbers of numpy."""
    return dict(value) if isinstance(value, Mapping) else value.item()


def _printed(lines: Output) -> Any:
    """Print a command's lines as they come, unless quiet; what it returns."""
    while True:
        try:
            line = next(lines)
        except StopIteration as end:
            return end.value
        if not _quiet.is_set():
            write(printable(line, LONGEST))


def write(text: str, end: str = "\n") -> None:
    """Print a line at once; or with nothing in it, what argparse has printed.

    `BrokenPipeError` where nobody reads any more, `OutputError` where it cannot be written.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # What is left goes nowhere, so that the interpreter's flush at exit does not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"Standard output cannot be written: {error.strerror}.") from None
