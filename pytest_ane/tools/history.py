"""`pytest-ane history`: the memory of many runs, which `--ane-report=history/` writes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_manifest, add_shards
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import HistoryError

if TYPE_CHECKING:
    from pytest_ane.records.memory import Memory

HELP = "ask the memory of many runs: when a figure stepped, and what two runs differ in"
EXAMPLE = "pytest-ane history cosine.min --shards L11"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked, and where the memory is."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FIGURE | diff A B | judge",
        help="a figure such as cosine.min: its course over commits; 'diff' and two runs, commits "
        "or parts of machines' names: what they differ in; 'judge': since when today's policy "
        "would have been red; nothing: an overview with all steps",
    )
    add_shards(parser, "which shards and models (default: all)")
    parser.add_argument("--gate", default="", help="figures of this gate alone")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="default: the folder history next to the manifest",
    )
    add_manifest(parser)


def run(options: argparse.Namespace) -> Output:
    """Read the memory, note what was skipped, and answer."""
    from pytest_ane.records.memory import FOLDER, Memory
    from pytest_ane.tools._history_words import skipped, unordered

    manifest = options.manifest or Path("shards.toml")
    memory = Memory(options.history or manifest.absolute().parent / FOLDER)
    memory.check(gate=options.gate, shards=options.shards)
    yield from skipped(memory.skipped)
    yield from unordered(memory.runs)
    match options.what:
        case []:
            data = yield from _overview(memory, options)
        case ["judge"]:
            data = yield from _judge(memory, options)
        case ["diff", a, b]:
            data = yield from _diff(memory, options, a, b)
        case ["diff", *_]:
            raise HistoryError("history diff takes two words, such as: history diff HEAD~3 HEAD")
        case [figure]:
            data = yield from _course(memory, options, figure)
        case _:
            raise HistoryError(
                f"history takes one figure, and was given {' '.join(options.what)}; pytest-ane "
                "history --help shows how."
            )
    return {**data, "skipped": memory.skipped}


def _overview(memory: Memory, options: argparse.Namespace) -> Output:
    from pytest_ane.records.steps import summaries, turns
    from pytest_ane.tools._history_words import overview

    asked = {"gate": options.gate, "shards": options.shards}
    models, found = summaries(memory, **asked), turns(memory, **asked)
    yield from overview(models, found)
    return {"models": models, "steps": found}


def _course(memory: Memory, options: argparse.Namespace, figure: str) -> Output:
    from pytest_ane.records.steps import turns
    from pytest_ane.tools._history_words import course

    asked = {"gate": options.gate, "shards": options.shards}
    found = memory.series(figure, **asked)
    if not found:
        raise HistoryError(_unknown(memory, figure, options))
    steps = turns(memory, figure=figure, **asked)
    for at, series in enumerate(found):
        if at:
            yield ""
        yield from course(memory, series, steps)
    return {"runs": memory.runs, "series": found, "steps": steps}


def _unknown(memory: Memory, figure: str, options: argparse.Namespace) -> str:
    """That there is no such figure, and the names that come near."""
    from difflib import get_close_matches

    names = memory.names(gate=options.gate, shards=options.shards)
    near = get_close_matches(figure, names, 4, 0.4) or names[:4]
    some = f"{len(names)} figures, such as " if len(near) < len(names) else ""
    narrowed = " with this gate and these shards" if options.gate or options.shards != "all" else ""
    return f"No line has the figure {figure!r}{narrowed}; there are {some}{', '.join(near)}."


def _judge(memory: Memory, options: argparse.Namespace) -> Output:
    from pytest_ane.project.entries import read_manifest
    from pytest_ane.records.history import judge
    from pytest_ane.tools._history_words import judged

    manifest = read_manifest(options.manifest or Path("shards.toml"))
    found = judge(memory, manifest, gate=options.gate, shards=options.shards)
    yield from judged(found)
    return vars(found)


def _diff(memory: Memory, options: argparse.Namespace, a: str, b: str) -> Output:
    from pytest_ane.records.history import compare
    from pytest_ane.tools._history_words import comparison

    found = compare(memory, a, b, gate=options.gate, shards=options.shards)
    yield from comparison(found)
    return {
        **{name: value for name, value in vars(found).items() if name != "differences"},
        "differences": [difference._asdict() for difference in found.differences],
    }
