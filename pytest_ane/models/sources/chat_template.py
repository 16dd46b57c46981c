"""Chat templates, which come with the weights: rendered by transformers in a process within limits.

jinja's sandbox keeps a template from the machine, and bounds one `range`; loops within loops,
powers and padding would still take the processor or the memory for ever. This file is also the
program of that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

SECONDS = 30
"""Time that a template may take; real ones take milliseconds, after transformers' 2 s of import."""
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
    request = {
        "template": template,
        "text": text,
        "specials": dict(specials),
        "path": [p for p in sys.path if p],
    }
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


def answer_of(template: str, text: str, specials: Mapping[str, str]) -> dict[str, str]:
    """What the process answers, without its limits of time and memory: `text`, or an `error`."""
    from transformers.utils import chat_template_utils as library

    try:
        # The compiled template is kept, and with it what it knows.
        library._compile_jinja_template(template).globals["strftime_now"] = TODAY.strftime
        (written,), _ = library.render_jinja_template(
            [[{"role": "user", "content": text}]],
            chat_template=template,
            add_generation_prompt=True,
            **specials,
        )
    except MemoryError:
        return {"error": f"it takes more than {_MEMORY:,} bytes of memory"}
    # A template may raise whatever an expression in it does, not jinja's errors alone.
    except Exception as error:
        return {"error": str(error)[:500] or type(error).__name__}
    if len(written) > CHARACTERS:
        return {"error": f"it writes more than {CHARACTERS:,} characters"}
    return {"text": written}


def _main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request.pop("path")
    import transformers.utils.chat_template_utils  # noqa: F401  The limit is the template's.

    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    print(json.dumps(answer_of(**request)))


if __name__ == "__main__":
    _main()
