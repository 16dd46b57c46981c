"""Options that several commands have; each is also known by its name in pytest, `--ane-...`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import cast

from pytest_ane.mlprogram.arithmetic import Arithmetic, read_arithmetic, read_arithmetics


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """`--manifest`, `--ane-manifest`."""
    parser.add_argument(
        "--manifest", "--ane-manifest", type=Path, metavar="FILE", help="default: shards.toml"
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """`--cache`, `--ane-cache`."""
    parser.add_argument(
        "--cache",
        "--ane-cache",
        type=Path,
        metavar="DIR",
        help="the cache folder (default: the user's own); a new one must be empty",
    )


def add_project(parser: argparse.ArgumentParser) -> None:
    """The manifest and the cache."""
    add_manifest(parser)
    add_cache(parser)


def add_stack(parser: argparse.ArgumentParser) -> None:
    """The options of commands that run a whole model; what is missing is built."""
    add_project(parser)
    parser.add_argument("--model", metavar="NAME", help="default: the only whole one")
    add_budget(parser)


def add_shards(parser: argparse.ArgumentParser, help: str) -> None:
    """`--shards`, `--ane-shards`: a selection, of all by default."""
    parser.add_argument("--shards", "--ane-shards", default="all", metavar="SHARDS", help=help)


def add_function(parser: argparse.ArgumentParser, default: str = "the model's own") -> None:
    """`--function`."""
    parser.add_argument("--function", help=f"a function of several (default: {default})")


def add_backend(parser: argparse.ArgumentParser, help: str, default: str | None = None) -> None:
    """`--backend`, `--ane-backend`."""
    parser.add_argument(
        "--backend",
        "--ane-backend",
        choices=("auto", "cpu", "coreml"),
        default=default,
        help=help,
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """`--memory`, `--ane-memory`, `--time`, `--ane-time`: what running a program may take."""
    parser.add_argument(
        "--memory",
        "--ane-memory",
        type=_size,
        metavar="SIZE",
        help="memory that running a program may take, such as '8 GB' (default: half of what is "
        "free)",
    )
    parser.add_argument(
        "--time",
        "--ane-time",
        type=_seconds,
        metavar="TIME",
        help="how long one call of a program may take, such as '90 s' or '2 h' (default: 10 min)",
    )


def budget(options: argparse.Namespace) -> AbstractContextManager[None]:
    """The budget that a command's options set, while it runs."""
    if not hasattr(options, "memory"):
        return nullcontext()
    from pytest_ane.mlprogram.executor.budget import process_budget

    return process_budget(options.memory, options.time)


def _size(text: str) -> int:
    from pytest_ane.manifest.policy import size

    return cast(int, _parsed(size, int(text) if text.isdecimal() else text))


def _seconds(text: str) -> float:
    from pytest_ane.manifest.policy import seconds

    return cast(float, _parsed(seconds, text))


def _parsed(parse: Callable[[object], object], value: object) -> object:
    try:
        return parse(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value}: {error}") from None


def add_manifest_arithmetic(parser: argparse.ArgumentParser) -> None:
    """`--arithmetic`, `--ane-arithmetic`, where a manifest may name the arithmetic: else None."""
    add_arithmetic(
        parser,
        "how the CPU executor computes: as typed, or as the ANE of M4 and later does (default: "
        "'ane' where the manifest names it)",
        None,
    )


def add_arithmetic(
    parser: argparse.ArgumentParser, help: str = "", default: Arithmetic | None = "typed"
) -> None:
    """`--arithmetic`, `--ane-arithmetic`: how the CPU executor computes."""
    parser.add_argument(
        "--arithmetic",
        "--ane-arithmetic",
        type=_arithmetic,
        default=default,
        metavar="typed|ane",
        help=help
        or "round as the program's types say (default), or compute as the ANE of M4 and later "
        "does, where that is known",
    )


def add_arithmetics(parser: argparse.ArgumentParser) -> None:
    """`--arithmetic`, `--ane-arithmetic` of one or both, in place of the manifest's."""
    parser.add_argument(
        "--arithmetic",
        "--ane-arithmetic",
        type=lambda text: _parsed(lambda words: read_arithmetics(str(words)), text),
        default=(),
        metavar="A[,B]",
        help="arithmetic in which gates judge: 'typed', 'ane' or 'typed,ane' (default: the "
        "manifest's)",
    )


def _arithmetic(text: str) -> Arithmetic:
    return cast(Arithmetic, _parsed(lambda word: read_arithmetic(str(word)), text))


def add_yes(parser: argparse.ArgumentParser) -> None:
    """`--yes`."""
    parser.add_argument("--yes", action="store_true", help="prune: delete without a question")


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
