"""Options that several commands have; each is also known by its name in pytest, `--ane-...`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.arithmetic import read_arithmetic, read_arithmetics


def _read(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of texts as argparse wants one: its errors say the text."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return read


def _limit(name: str) -> Callable[[str], Any]:
    """A parser of the policy's sizes or times, which is imported when one is read."""

    def read(text: str) -> Any:
        from pytest_ane.manifest import policy

        return getattr(policy, name)(int(text) if text.isdecimal() else text)

    return _read(read)


size, seconds = _limit("size"), _limit("seconds")

_SHARED: dict[str, dict[str, Any]] = {
    "manifest": {"type": Path, "metavar": "FILE", "help": "default: shards.toml"},
    "cache": {
        "type": Path,
        "metavar": "DIR",
        "help": "the cache folder (default: the user's own); a new one must be empty",
    },
    "shards": {"default": "all", "metavar": "SHARDS"},
    "backend": {"choices": ("auto", "cpu", "coreml")},
    "memory": {
        "type": size,
        "metavar": "SIZE",
        "help": "memory that running a program may take, such as '8 GB' (default: half of what is "
        "free)",
    },
    "time": {
        "type": seconds,
        "metavar": "TIME",
        "help": "how long one call of a program may take, such as '90 s' or '2 h' (default: 10 "
        "min)",
    },
    "arithmetic": {},
}


def add_shared(parser: argparse.ArgumentParser, *names: str, **how: Any) -> None:
    """Options by name; `how` is what argparse is told besides."""
    for name in names:
        parser.add_argument(f"--{name}", f"--ane-{name}", **_SHARED[name] | how)


def add_stack(parser: argparse.ArgumentParser) -> None:
    """The options of commands that run a whole model; what is missing is built."""
    add_shared(parser, "manifest", "cache")
    parser.add_argument("--model", metavar="NAME", help="default: the only whole one")
    add_shared(parser, "memory", "time")


def add_function(parser: argparse.ArgumentParser, default: str = "the model's own") -> None:
    """`--function`."""
    parser.add_argument("--function", help=f"a function of several (default: {default})")


def budget(options: argparse.Namespace) -> AbstractContextManager[None]:
    """The budget that a command's options set, while it runs."""
    if not hasattr(options, "memory"):
        return nullcontext()
    from pytest_ane.mlprogram.executor.budget import process_budget

    return process_budget(options.memory, options.time)


def add_arithmetic(
    parser: argparse.ArgumentParser, help: str = "", *, by_manifest: bool = False
) -> None:
    """`--arithmetic`: how the CPU executor computes; `by_manifest` may leave it out, None."""
    default = "(default: 'ane' where the manifest names it)" if by_manifest else "(default: typed)"
    words = (
        "how the CPU executor computes: as the program's types say, or as the ANE of M4 and later "
        f"does, where that is known {default}"
    )
    how: dict[str, Any] = {"default": None if by_manifest else "typed", "help": help or words}
    add_shared(parser, "arithmetic", type=_read(read_arithmetic), metavar="typed|ane", **how)


def add_arithmetics(parser: argparse.ArgumentParser) -> None:
    """`--arithmetic` of one or both, in place of the manifest's."""
    words = (
        "arithmetic in which gates judge: 'typed', 'ane' or 'typed,ane' (default: the manifest's)"
    )
    how: dict[str, Any] = {"default": (), "help": words}
    add_shared(parser, "arithmetic", type=_read(read_arithmetics), metavar="A[,B]", **how)


def positive(text: str) -> float:
    """A rate or a time: `1e-9` to `1e12`, in whatever unit, so that ratios of two are finite."""
    with suppress(ValueError):
        if 1e-9 <= (value := float(text)) <= 1e12:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number above 0, from 1e-9 to 1e12")


def count(text: str) -> int:
    """A whole number from 1 to 65536."""
    with suppress(ValueError):
        if 0 < (value := int(text)) <= 1 << 16:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 to 65536")
