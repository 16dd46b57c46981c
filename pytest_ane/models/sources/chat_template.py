"""Chat templates, which come with the weights: rendered in a process of their own, within limits.

jinja's sandbox keeps a template from the machine, and bounds one `range`; loops within loops,
powers and padding would still take the processor or the memory for ever. This file is also the
program of that process, which imports jinja2 and the standard library alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import NoReturn

SECONDS = 10
"""Time that a template may take; real ones take milliseconds."""
CHARACTERS = 1_000_000
"""Characters that a template may write."""
TODAY = datetime(2024, 7, 26)
"""The day that templates are told, of Llama 3's where there is no clock: tokens stay the same."""
_MEMORY = 1 << 30
"""Bytes of its process, where the system limits them: not on Windows, loosely on macOS."""


class TemplateError(Exception):
    """A template failed, or went beyond a limit; says why."""


def render(template: str, text: str, specials: Mapping[str, str]) -> str:
    """One user message in a chat template, up to where the answer begins.

    `specials` are `bos_token` and others by the names that templates call them; `TemplateError`
    where a template is wrong, fails, or takes too much time, memory or text.
    """
    values = {
        "messages": [{"role": "user", "content": text}],
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
        **specials,
    }
    request = {"template": template, "values": values, "path": [p for p in sys.path if p]}
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__],
            input=json.dumps(request), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise TemplateError(f"it runs for more than {SECONDS} s") from None
    except OSError as error:
        raise TemplateError(f"its process does not start: {error.strerror or error}") from None
    except ValueError:  # Killed by the system, or out of memory while it answered.
        raise TemplateError(f"its process ended with code {done.returncode}") from None
    if "error" in answer:
        raise TemplateError(answer["error"])
    return str(answer["text"])


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _rendered(template: str, values: Mapping[str, object]) -> str:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` around what an assistant says, which training alone looks at."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": TODAY.strftime}
    parts, size = [], 0
    for part in sandbox.from_string(template).generate(**values):
        parts.append(part)
        size += len(part)
        if size > CHARACTERS:
            raise ValueError(f"it writes more than {CHARACTERS:,} characters")
    return "".join(parts)


def _main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        answer = {"text": _rendered(request["template"], request["values"])}
    except MemoryError:
        answer = {"error": f"it takes more than {_MEMORY:,} bytes of memory"}
    # A template may raise whatever an expression in it does, not jinja's errors alone.
    except Exception as error:
        answer = {"error": str(error)[:500] or type(error).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
