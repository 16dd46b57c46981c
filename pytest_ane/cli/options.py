"""Options that several commands have; each is also known by its name in pytest, `--ane-...`."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path


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


def add_shards(parser: argparse.ArgumentParser, help: str) -> None:
    """`--shards`, `--ane-shards`: a selection, of all by default."""
    parser.add_argument("--shards", "--ane-shards", default="all", metavar="SHARDS", help=help)


def add_backend(parser: argparse.ArgumentParser, help: str, default: str | None = None) -> None:
    """`--backend`, `--ane-backend`."""
    parser.add_argument(
        "--backend",
        "--ane-backend",
        choices=("auto", "cpu", "coreml"),
        default=default,
        help=help,
    )


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
