"""`pytest-ane try`: gate what you have with one command, and say what came of it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Failed, Output
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import counted
from pytest_ane.manifest import Shard, parse
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.model import SUFFIXES
from pytest_ane.report.answers import on_the_ane, right
from pytest_ane.report.run import Row, read_run
from pytest_ane.report.terminal import answer
from pytest_ane.tools._init_model import model_name
from pytest_ane.tools._init_packages import Made
from pytest_ane.tools._init_source import SOURCES, of_source
from pytest_ane.tools.init import save

EXAMPLE = "pytest-ane try encoder.mlpackage --reference encoder-fp16.mlpackage"
_SMALL = 100_000_000
"""Bytes of packages, or of a model's fp16, up to which all shards are gated at once."""
_KEPT = ".written.toml"
"""What was tried, and a copy of what was written: a manifest that differs was edited, and stays."""
_RED = 1
"""pytest's exit code where tests failed; it has others for what kept it from running."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is tried, what it is held against, and where that is written."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=SOURCES)
    words = "of a package: what it is compared with, such as its uncompressed form; of a folder "
    words += "of packages another one, with packages of the same names"
    add("--reference", action="append", default=[], metavar="REFERENCE", help=words)
    words = "of a torch module: the shape of an input, as x=1,3,224,224"
    add("--input", action="append", default=[], metavar="NAME=SHAPE", help=words)
    words = "which (default: all of what is small, else the first of each kind)"
    add_shared(parser, "shards", help=words, default=None)
    add("--out", type=Path, metavar="DIR", help="where to write (default: try-NAME)")


def run(options: argparse.Namespace) -> Output:
    """Write a manifest into a folder of its own, run the gates, and say in three lines what came.

    `Failed` where a gate is red.
    """
    folder: Path = options.out or Path(f"try-{_name(options.source)}")
    manifest = folder / "shards.toml"
    kept = manifest.with_name(_KEPT)
    asked = shlex.join([options.source, *options.reference, *options.input])
    of, _, written = _read(kept).removeprefix("# ").partition("\n")
    if (text := _read(manifest)) and text != written:
        if of != asked:
            of = of or "something else"
            raise ManifestError(
                f"{manifest} is yours, and of {of}; name another folder: --out DIR."
            )
        yield f"{manifest} is yours, and used as it is"
        made = None
    else:
        made = of_source(options.source, manifest, options.reference, options.input)
        text = made.text
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield from save(made, manifest)
            kept.write_text(f"# {asked}\n{text}", encoding="utf-8")
        except OSError as error:
            raise ManifestError(f"{error.filename} cannot be written: {error.strerror}.") from error
        yield from (line for line in made.lines if not line.startswith(("next: ", "then: ")))
    shards = parse(text, manifest).shards
    chosen = options.shards or ",".join(_first(shards, made))
    code = _pytest(folder, chosen, quiet=options.json)
    if code not in (0, _RED):
        raise ManifestError(f"pytest ended with exit code {code}, before the gates were through.")
    rows = read_run(folder / "run.jsonl").rows
    answers = {"right": right(rows, len(shards)), "on the ANE": on_the_ane(rows)}
    page, steps = folder / "report.html", _next(rows, chosen)
    yield from (f"{f'{question}?':<12} {said.line}" for question, said in answers.items())
    here = " && ".join([f"cd {shlex.quote(str(folder))}", *steps])
    yield f"{'next:':<12} {page}{f' · {here}' if steps else ''}"
    red = [row for row in rows if row.red]
    facts = {"folder": folder, "page": page, "red": len(red), "next": steps}
    facts |= {
        question.lower().replace(" ", "_"): {"answer": said.word, "says": said.says}
        for question, said in answers.items()
    }
    return Failed(f"red: {len(red)} of {counted(len(rows), 'gate')}.", facts) if red else facts


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _name(source: str) -> str:
    path = Path(source.rpartition(":")[2]) if ":" in source else Path(source).expanduser()
    path = path.absolute()
    return model_name(path.with_suffix("") if path.suffix in SUFFIXES else path)


def _first(shards: Sequence[Shard], made: Made | None) -> list[str]:
    """All shards of what is small; else the first of each kind, told by its id."""
    sizes = made.facts.get("shards") if made else None
    if isinstance(sizes, dict):
        size = sum(each.fp16 for each in sizes.values())
    else:
        size = sum(tree_bytes(shard.artifact) for shard in shards if shard.artifact)
    kinds = grouped((shard.id.rstrip("0123456789"), shard.id) for shard in shards)
    return ["all"] if size <= _SMALL else [ids[0] for ids in kinds.values()]


def _pytest(folder: Path, shards: str, *, quiet: bool) -> int:
    """Run the gates as the next command says, but for configuration of folders above."""
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=no", "-rN", "-c", os.devnull, "--rootdir", ".",
        "--confcutdir", ".", "-p", "no:cacheprovider", f"--ane-shards={shards}", "-m", "gate",
        "--ane-report=run.jsonl", "--ane-report=report.html",
    ]  # fmt: skip
    # Ctrl-C is ours alone, and pytest is ended as a CI ends it: it leaves no file and no traceback.
    process = subprocess.Popen(
        command, cwd=folder, stdout=2 if quiet else None, start_new_session=True
    )
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _next(rows: Sequence[Row], chosen: str) -> list[str]:
    """The commands that go on from here, in the manifest's folder."""
    red = next((row for row in rows if row.red), None)
    of_shards = [row for row in rows if row.gate in GATES and GATES[row.gate].scope == "shard"]
    steps = ["pytest --ane-shards=all -m gate"] * (red is None and chosen != "all")
    if red in of_shards and GATES[red.gate].answers == "right":
        steps.append(f"pytest-ane blame {red.subject.partition(':')[2]}")
    placed = (row for row in of_shards if GATES[row.gate].answers == "place")
    if off := next((row for row in placed if not answer(row).startswith("on ")), None):
        steps.append(f"pytest-ane explain {off.subject.partition(':')[2].partition('[')[0]}")
    return steps
