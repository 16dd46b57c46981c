"""The commands of `pytest-ane` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from pytest_ane import __version__

Run: TypeAlias = Callable[[argparse.Namespace], Iterator[str]]


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="pytest-ane", description="Quality gates for Core ML model shards."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("init", help="write a commented shards.toml and own gates")
    command.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    command.add_argument(
        "--no-gates", dest="gates", action="store_false", help="write the manifest only"
    )
    command.set_defaults(run=_runs("init", "folder", gates="gates"))

    command = commands.add_parser("schema", help="print the JSON Schema of shards.toml")
    command.set_defaults(run=_runs("schema"))

    command = commands.add_parser("doctor", help="look at what a run needs: versions, disk, models")
    _add_places(command)
    command.set_defaults(run=_runs("doctor", "ane_manifest", "ane_cache"))

    command = commands.add_parser("cache", help="list or prune built shards and recordings")
    command.add_argument(
        "action", choices=("list", "prune"), help="show entries, or delete old ones"
    )
    _add_cache(command)
    command.add_argument(
        "--keep",
        default="0",
        metavar="SIZE",
        help="prune: keep the most recently used up to this, such as '2 GB'",
    )
    command.add_argument("--yes", action="store_true", help="prune: delete without a question")
    command.set_defaults(run=_runs("cache", "action", "ane_cache", "keep", yes="yes"))

    command = commands.add_parser("explain", help="forecast a package's placement, op by op")
    command.add_argument(
        "package", type=Path, help="an .mlpackage or .mlmodelc; weights may be absent"
    )
    command.add_argument("--os", default="macOS 26", help="target system (default: macOS 26)")
    command.set_defaults(run=_runs("explain", "package", "os"))

    command = commands.add_parser("plan", help="what a recorded compute plan says, and proves")
    command.add_argument("file", type=Path, help="a plan or log that a Mac's tools recorded")
    command.add_argument(
        "--package",
        type=Path,
        help="the .mlmodelc or .mlpackage it is of, for types and what the plan leaves out",
    )
    command.set_defaults(run=_runs("plan", "file", "package"))

    command = commands.add_parser("evidence", help="what a Mac recorded, and what it is worth")
    command.add_argument(
        "action",
        choices=("list", "show", "verify", "prune"),
        help="list files, print one, hold them against today's policy, or delete unused ones",
    )
    command.add_argument("what", nargs="?", help="show: an evidence file, a shard or a model")
    command.add_argument(
        "--ane-shards", default="all", metavar="SHARDS", help="verify: which (default: all)"
    )
    _add_places(command)
    command.add_argument(
        "--ane-evidence", type=Path, metavar="DIR", help="default: evidence, beside the manifest"
    )
    command.add_argument("--ane-rehash", action="store_true", help="read unchanged files too")
    command.add_argument("--yes", action="store_true", help="prune: delete without a question")
    command.set_defaults(
        run=_runs(
            "evidence",
            "action",
            "what",
            manifest="ane_manifest",
            folder="ane_evidence",
            cache="ane_cache",
            shards="ane_shards",
            rehash="ane_rehash",
            yes="yes",
        )
    )

    command = commands.add_parser("golden", help="keep what a reference answers, as golden tensors")
    command.add_argument("action", choices=("record",), help="run the reference and keep answers")
    command.add_argument("what", help="a shard of the manifest, or a package")
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.safetensors",
        help="the file to write",
    )
    command.add_argument(
        "--package", type=Path, help="for a shard: run this in place of its float32 module"
    )
    _add_places(command)
    command.add_argument(
        "--ane-backend",
        choices=("auto", "cpu", "coreml"),
        default="auto",
        help="what runs a package (default: Core ML on a Mac, else the CPU executor)",
    )
    command.set_defaults(
        run=_runs(
            "golden",
            "what",
            "out",
            package="package",
            manifest="ane_manifest",
            cache="ane_cache",
            backend="ane_backend",
        )
    )

    command = commands.add_parser(
        "recommend", help="search the smallest compression that passes every gate"
    )
    command.add_argument("model", nargs="?", help="of the manifest; may be left out if it has one")
    _add_places(command)
    command.add_argument("--menu", type=Path, metavar="FILE", help="settings to choose from (TOML)")
    command.add_argument(
        "--log", type=Path, metavar="FILE", help="every number measured (default: in the cache)"
    )
    command.add_argument("--minutes", type=_positive, help="begin nothing new after so long")
    command.add_argument("--evaluations", type=_positive, help="measure at most so many stacks")
    command.add_argument("--write", action="store_true", help="put the result into the manifest")
    command.set_defaults(
        run=_runs(
            "recommend",
            "model",
            manifest="ane_manifest",
            cache="ane_cache",
            menu="menu",
            log="log",
            minutes="minutes",
            evaluations="evaluations",
            write="write",
        )
    )

    command = commands.add_parser("weights", help="what compression made of every weight")
    command.add_argument("package", type=Path, help="an .mlpackage or .mlmodelc")
    command.add_argument(
        "--against",
        type=Path,
        metavar="PACKAGE",
        help="its uncompressed form, for errors (default: as measured when it was built)",
    )
    command.set_defaults(run=_runs("weights", "package", "against"))

    command = commands.add_parser("run", help="run a model on this machine's CPU, without Core ML")
    command.add_argument("package", type=Path, help="an .mlpackage or .mlmodelc")
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="an input from a .npy file or a picture; or one FILE.npz of all",
    )
    command.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="y.npy for the only output, NAME=y.npy for any value, all.npz for all outputs",
    )
    command.add_argument(
        "--precision",
        choices=("as-typed", "float32", "float64"),
        default="as-typed",
        help="round fp16 results as their types say (default), or compute wider throughout",
    )
    command.add_argument("--function", help="a function of several (default: the model's own)")
    command.set_defaults(run=_runs("run", "package", "input", "out", "precision", "function"))

    command = commands.add_parser("diff", help="compare two packages op by op on the same inputs")
    command.add_argument("first", type=Path, help="an .mlpackage or .mlmodelc")
    command.add_argument("second", type=Path, help="another of the same module")
    command.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="as of run; else seeded"
    )
    command.add_argument(
        "--tolerance",
        type=float,
        default=1e-2,
        help="relative difference |a - b| / |b| of a result (default: 0.01)",
    )
    command.add_argument("--seed", type=int, default=0, help="of Gaussian inputs (default: 0)")
    command.set_defaults(run=_runs("diff", "first", "second", "input", "tolerance", "seed"))

    command = commands.add_parser("blame", help="which weights and operations an error comes from")
    command.add_argument(
        "shards", metavar="SHARDS", help="as --ane-shards takes them, or an .mlpackage"
    )
    command.add_argument(
        "--against", type=Path, metavar="PACKAGE", help="of a package: its uncompressed form"
    )
    _add_places(command)
    command.set_defaults(
        run=_runs("blame", "shards", against="against", manifest="ane_manifest", cache="ane_cache")
    )

    command = commands.add_parser(
        "bound", help="what limits each kind of shards, and what would help"
    )
    command.add_argument("path", type=Path, help="a manifest, an .mlpackage or .mlmodelc")
    command.add_argument("--model", metavar="NAME", help="of a manifest of several")
    command.add_argument(
        "--device",
        metavar="NAME",
        help="a chip such as 'M4 Max', 'this machine', or a profile FILE.toml "
        "(default: this Mac's chip, elsewhere M4 Max)",
    )
    command.add_argument("--bandwidth", type=_positive, metavar="GB/S", help="in place of its own")
    command.add_argument("--peak", type=_positive, metavar="TFLOP/S", help="in place of its own")
    command.add_argument(
        "--lanes", type=_count, metavar="N", help="pad the last axis to a multiple; 1 for none"
    )
    command.add_argument(
        "--tokens", type=_count, metavar="T", help="besides T = 1 (default: the largest T)"
    )
    command.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="[T=]TOK/S",
        help="measured speed, for its share of the bound; or a .json: a benchmark run, or another "
        "runtime's speed",
    )
    _add_cache(command)
    names = ("model", "device", "bandwidth", "peak", "lanes", "tokens", "measured")
    command.set_defaults(
        run=_runs("bound", "path", **{name: name for name in names}, cache="ane_cache")
    )

    command = commands.add_parser("drift", help="what each shard does to the hidden states")
    _add_stack(command)
    command.add_argument("--json", type=Path, metavar="FILE", help="write the measurement, too")
    command.set_defaults(run=_runs("drift", "ane_manifest", "model", "ane_cache", "json"))

    command = commands.add_parser("bisect", help="the fewest shards to blame for a red stack")
    _add_stack(command)
    command.add_argument(
        "--most", type=int, default=4, metavar="N", help="give up at more than this (default: 4)"
    )
    command.set_defaults(run=_runs("bisect", "ane_manifest", "model", "ane_cache", "most"))

    command = commands.add_parser(
        "calibrate", help="measure how much benchmarks differ when nothing changed"
    )
    command.add_argument("--runs", type=int, default=5, metavar="N", help="how many (default: 5)")
    command.add_argument(
        "--ane-shards", default="all", metavar="SHARDS", help="benchmarks of these (default: all)"
    )
    command.add_argument("-k", metavar="EXPRESSION", help="as of pytest: decode, or L01 and load")
    _add_places(command)
    command.add_argument("--ane-backend", choices=("auto", "cpu", "coreml"), help="of the runs")
    command.add_argument("--ane-compute-units", metavar="UNITS", help="of the runs")
    command.add_argument(
        "--benchmark-storage", metavar="URI", help="default: where the models' runs are stored"
    )
    command.add_argument(
        "--device",
        action="store_true",
        help="instead: this machine's memory bandwidth and peak rate, for pytest-ane bound",
    )
    command.set_defaults(
        run=_runs(
            "calibrate",
            "runs",
            "ane_shards",
            "benchmark_storage",
            device="device",
            manifest="ane_manifest",
            cache="ane_cache",
            backend="ane_backend",
            units="ane_compute_units",
            expression="k",
        )
    )

    command = commands.add_parser(
        "speculate", help="whether drafts by prompt lookup make decoding faster"
    )
    _add_stack(command)
    command.add_argument("--prompt", metavar="NAME", help="a golden prompt (default: the first)")
    command.add_argument(
        "--prompt-ids", type=_ids, metavar="ID,...", help="token ids, such as 2,42, as the prompt"
    )
    command.add_argument(
        "--width",
        type=int,
        default=4,
        metavar="N",
        help="positions of a call: the last token and N - 1 drafts (default: 4)",
    )
    command.add_argument(
        "--tokens", type=int, default=40, metavar="N", help="to decode (default: 40)"
    )
    command.add_argument(
        "--margin", type=float, metavar="X", help="of two logits, below which a tie is near"
    )
    command.add_argument(
        "--ngram-min",
        type=_count,
        default=2,
        metavar="N",
        help="tokens at the end of the text that must have occurred before (default: 2)",
    )
    command.add_argument(
        "--times",
        type=_positive,
        nargs=2,
        metavar=("T1", "TV"),
        help="only the break-even, of these milliseconds of a step and of a call",
    )
    command.set_defaults(
        run=_runs(
            "speculate",
            "ane_manifest",
            "model",
            "ane_cache",
            prompt="prompt",
            prompt_ids="prompt_ids",
            width="width",
            tokens="tokens",
            margin="margin",
            ngram_min="ngram_min",
            times="times",
        )
    )
    return top


def _runs(module: str, *names: str, **keywords: str) -> Run:
    """Calls `run` of a command's module, imported only now, with the options of these names."""

    def run(options: argparse.Namespace) -> Iterator[str]:
        given = vars(options)
        command = import_module(f"pytest_ane.cli.{module}")
        lines: Iterator[str] = command.run(
            *(given[name] for name in names),
            **{key: given[name] for key, name in keywords.items()},
        )
        return lines

    return run


def _add_stack(command: argparse.ArgumentParser) -> None:
    """The options of commands that run a whole model; what is missing is built."""
    _add_places(command)
    command.add_argument("--model", metavar="NAME", help="default: the only whole one")


def _add_places(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ane-manifest", type=Path, metavar="FILE", help="default: shards.toml")
    _add_cache(command)


def _add_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ane-cache", type=Path, metavar="DIR", help="the cache folder, new or empty at first"
    )


def _positive(text: str) -> float:
    """A rate or a time: `1e-9` to `1e12`, in whatever unit, so that ratios of two are finite."""
    with suppress(ValueError):
        if 1e-9 <= (value := float(text)) <= 1e12:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number above 0, from 1e-9 to 1e12")


def _count(text: str) -> int:
    with suppress(ValueError):
        if 0 < (value := int(text)) <= 1 << 16:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 to 65536")


def _ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(map(int, text.split(",")))
    except ValueError:
        ids = ()
    if not ids or min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text} is no list of token ids, such as 2,42")
    return ids
