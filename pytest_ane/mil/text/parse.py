"""The parser: LALR tables of `mil.lark`, made once per process, and its complaints."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken
from lark.exceptions import LarkError

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import Program
from pytest_ane.mil.text.build import Build, Fault

_DEEPEST_STACK = 1024
"""Symbols the parser holds at once: a block holds about ten, and 32 may nest."""


def parse(text: str, file: object = "model.mil") -> Program:
    """A program from its text; attributes of the program and of functions are not kept.

    Args:
        text: of `model.mil`.
        file: its name in complaints.

    Raises:
        ProgramError: not MIL, an undefined or doubly defined name, a value its type does not fit,
            or nesting too deep; begins with `file:line:column`.
    """
    try:
        return _parsed(text)
    except Fault as fault:
        raise ProgramError(f"{file}:{fault}") from None
    except UnexpectedInput as error:
        raise ProgramError(f"{file}:{_complaint(error, text)}") from None
    except LarkError as error:
        raise ProgramError(f"{file}: cannot be parsed ({type(error).__name__}).") from None


def _parsed(text: str) -> Program:
    interactive = _parser().parse_interactive(text)
    stack = interactive.parser_state.value_stack
    for token in interactive.iter_parse():
        # Repetition leaves nothing on the stack, nesting does.
        if len(stack) > _DEEPEST_STACK:
            raise Fault(f"{token.line}:{token.column}: brackets nest too deep.")
    program: Program = interactive.feed_eof()  # type: ignore[no-untyped-call]
    return program


@cache
def _parser() -> Lark:
    grammar = files(__package__).joinpath("mil.lark").read_text("utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="contextual",
        transformer=Build(),
        g_regex_flags=re.ASCII,
    )


def _complaint(error: UnexpectedInput, text: str) -> str:
    line, column = error.line, error.column
    if isinstance(error, UnexpectedEOF) or _ended(error):
        return f"{text.count(chr(10)) + 1}: the text ends too early; the file is cut short."
    at = f"{line}:{column}"
    found: Any = text[error.pos_in_stream or 0 :][:1]
    if isinstance(error, UnexpectedToken):
        found = str(error.token)
    if isinstance(error, UnexpectedCharacters) and found == '"':
        return f"{at}: a text that does not end, or of more than 65,535 escapes."
    return f"{at}: {found[:40]!r} has no place here."


def _ended(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"
