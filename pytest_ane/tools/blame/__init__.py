"""`pytest-ane blame`: trace a shard's error to weights and operations."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_ane.backends import CpuBackend
from pytest_ane.cli.options import add_arithmetic, add_shared
from pytest_ane.cli.output import Output
from pytest_ane.gates.verdict import CAUSE, Cell, Column, Finding, Table, Where, rounded, some
from pytest_ane.make import uncompressed_package
from pytest_ane.manifest import Linear, Palettize, Settings, Shard, package_manifest, select
from pytest_ane.manifest.problems import toml_text
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, label
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.metrics.tensors import in_words
from pytest_ane.mlprogram.model import SUFFIXES, counterpart, read_model
from pytest_ane.mlprogram.text import printable
from pytest_ane.mlprogram.weights import Weight
from pytest_ane.project.entries import expanded
from pytest_ane.project.project import Project, read_project
from pytest_ane.report.arithmetic import rules_lines
from pytest_ane.report.table import table
from pytest_ane.tools.blame.analysis import WORST, Blame, Remedy, blame

EXAMPLE = "pytest-ane blame int4.mlpackage --against fp16.mlpackage"
_RUN_BY = "run by the CPU executor"
_DEVICE = f"{_RUN_BY}, not by the device: this explains compression and arithmetic, no more"
_WEIGHTS = ("weight", "stored as", "restored", "alone", "share", "remedy", "error with it", "more")
_OPERATIONS = ("op", "type", "own error", "as typed", "arrives with", "leaves with", "note")
_UNITS = {"share": "%", "more": "bytes"}
_NOT_BY_WEIGHTS = ("engine", "function", "fp16")
"""Causes that no weight mends."""
_CAUSES = {
    "engine": "the ANE's arithmetic: as typed, less than half of the error is left",
    "function": "wrong function: exact weights in float32 leave most of the error, so that neither "
    "compression nor fp16 is its cause",
    "fp16": "fp16: exact weights leave most of the error, and float32 does not",
    "compression": "compression: exact weights leave less than half of the error",
}
_MENDED = 0.9
"""Share of the squared error up to which further weights get an entry."""
_NAMED = 3
"""Probes that are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shards or a package, and a package's uncompressed form."""
    add = parser.add_argument
    add("shards", metavar="SHARDS", help="as --ane-shards takes them, or an .mlpackage")
    add("--against", type=Path, metavar="PACKAGE", help="of a package: its uncompressed form")
    add_shared(parser, "manifest", "cache")
    add_arithmetic(parser, by_manifest=True)
    add_shared(parser, "memory", "time")


def run(options: argparse.Namespace) -> Output:
    """The weights and operations that the error of selected shards, or of a package, comes from."""
    project = _project(options)
    blames: dict[str, Blame] = {}
    with project.use():
        for shard in project.shards:
            if len(project.shards) > 1:
                yield from ("", shard.qualified) if blames else (shard.qualified,)
            blame = blames[shard.qualified] = blame_shard(project, shard, options.arithmetic)
            yield from lines(blame)
    return {
        "shards": {
            name: {**vars(blame), "arithmetic": label("typed" if blame.rules is None else "ane")}
            for name, blame in blames.items()
        }
    }


def _project(options: argparse.Namespace) -> Project:
    shards, against, cache = options.shards, options.against, options.cache
    if (package := Path(shards)).suffix in SUFFIXES:
        alone = expanded(package_manifest(package.absolute()))
        plain = against and against.absolute()
        update = {"reference": plain, "uncompressed": plain} if plain else {}
        held = tuple(shard.model_copy(update=update) for shard in alone.shards)
        return Project(alone, held, cache, backend_name="cpu")
    if against is not None:
        raise ManifestError(
            f"--against {against} is for a package; what {shards} is held against stands in "
            "shards.toml."
        )
    project = read_project(options.manifest, cache, backend_name="cpu")
    project.shards = select(project.manifest, shards)
    return project


def blame_shard(project: Project, shard: Shard, arithmetic: Arithmetic | None = None) -> Blame:
    """Find the weights and operations that a shard's error comes from.

    All is run by the CPU executor, references included, the package by default in the arithmetic
    `ane` where the shard names it; the uncompressed package is built if need be. `AneError` where
    the packages or the reference cannot be had or run.
    """
    artifact = project.artifact(shard)
    program = read_model(artifact.path, function=shard.function)
    if shard.artifact is None:
        plain: Path | None = project.build(shard.model_copy(update={"compression": None})).path
    else:
        plain = uncompressed_package(shard, artifact, program)
    none = (
        f"{shard.qualified} has no uncompressed package to take weights from; name one as its "
        "'uncompressed', or with --against."
    )
    return blame(
        program,
        read_model(plain, function=counterpart(plain, shard.function)) if plain else None,
        project.cases(shard, artifact, CpuBackend()),
        without="" if plain else none,
        arithmetic=arithmetic or ("ane" if "ane" in shard.arithmetic else "typed"),
    )


def lines(blame: Blame, *, on_device: bool = False) -> Iterator[str]:
    """A few lines and two tables of at most five rows; `on_device` says where the gate ran."""
    yield from map(printable, _lines(blame, _DEVICE if on_device else _RUN_BY))


def cause(blame: Blame) -> Finding:
    """The cause in a sentence, and where to begin: a weight with its remedy, or an operation."""
    reason = _reason(blame) or "the cause of the error is not known"
    if blame.weights and blame.cause not in _NOT_BY_WEIGHTS:
        worst = min(blame.weights, key=lambda culprit: culprit.remedy is None)
        if _has_one_scale(worst.weight):
            reason += f"; {worst.weight.name} has one scale for {worst.weight.shape[0]:,} rows"
        return Finding("note", reason, Where(weight=worst.weight.name), _overrides(blame), CAUSE)
    worst_op = next((s.name for s in blame.operations if s.is_off), "")
    return Finding("note", reason, Where(op=worst_op), "", CAUSE)


def _reason(blame: Blame) -> str:
    """The first NaN or infinity where that is what is wrong, else which of four causes it has."""
    if blame.cause == "function" and math.isinf(blame.algebra):
        return f"wrong function: {blame.overflow or 'NaN or infinity in float32 as well'}"
    if blame.overflow and blame.cause in ("fp16", ""):
        return blame.overflow
    return _CAUSES.get(blame.cause, "")


def tables(blame: Blame) -> tuple[Table, Table]:
    """All weights and all operations, the worst first."""
    weights = [
        (c.weight.name, _stored(c.weight), *map(rounded, (c.restored, c.alone, c.share)),
         *_remedy(c.remedy))
        for c in blame.weights
    ]  # fmt: skip
    operations = [
        (s.name, s.op, rounded(s.own), None if math.isnan(s.typed) else rounded(s.typed),
         *map(rounded, (s.inputs, s.output)), s.note)
        for s in blame.operations
    ]  # fmt: skip
    return _table("weights", _WEIGHTS, weights), _table("operations", _OPERATIONS, operations)


def _table(what: str, heads: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    columns = tuple(Column(head, _UNITS.get(head, "")) for head in heads)
    title = f"{what} that the error comes from"
    return Table(title, columns, tuple(rows), f"blame.{what}", listed=False)


def _stored(weight: Weight) -> str:
    groups = f" x {weight.groups * weight.blocks}" if weight.groups else ""
    if _has_one_scale(weight):
        groups = f", one scale for {weight.shape[0]:,} rows"
    return f"{weight.storage.removeprefix('constexpr_')}, {weight.nbits} bits{groups}"


def _has_one_scale(weight: Weight) -> bool:
    scales = [stage.count for stage in weight.stages if stage.is_quantization]
    return scales == [1] and len(weight.shape) > 1


def _remedy(remedy: Remedy | None) -> tuple[Cell, ...]:
    if remedy is None:
        return None, None, None
    return describe(remedy.settings), rounded(remedy.error), remedy.more


def _lines(blame: Blame, run_by: str) -> Iterator[str]:
    weights, operations = tables(blame)
    yield from _errors(blame, run_by)
    if blame.without:
        yield blame.without
    if blame.weights and blame.cause not in _NOT_BY_WEIGHTS:
        yield from table(replace(weights, title="", rows=weights.rows[:WORST]))
        if more := len(blame.weights[WORST:]):
            made = sum(culprit.share for culprit in blame.weights[:WORST])
            yield f"... and {more} more; those above make {made:.1%} of the squared error"
        if entries := _overrides(blame):
            yield entries
    if blame.absent and not blame.without:
        yield (
            f"{len(blame.absent)} more have no counterpart in the uncompressed package and stayed "
            f"compressed: {some(blame.absent, _NAMED)}"
        )
    if shown := sum(suspect.is_off for suspect in blame.operations):
        yield from table(replace(operations, title="", rows=operations.rows[: min(shown, WORST)]))
    else:
        yield f"all {len(blame.operations)} operations agree with float32 on the same inputs"
    for finding in blame.hazards[:WORST]:
        word = "hazard" if finding.severity == "failed" else "near a hazard"
        yield f"{word}: {finding.reason.removeprefix(f'{SIMULATED}: ')}; {finding.remedy}"
    if more := len(blame.hazards[WORST:]):
        yield f"... and {more} more, which the hazards gate names"


def _errors(blame: Blame, run_by: str) -> Iterator[str]:
    if reason := _reason(blame):
        yield reason
    yield (
        f"relative error of the {'contribution' if blame.contribution else 'output'} on the worst "
        f"{len(blame.probes)} of {blame.of} probes ({some(blame.probes, _NAMED)})"
    )
    exact = "" if math.isnan(blame.exact) else f", {in_words(blame.exact)} with every weight exact"
    algebra = "" if math.isnan(blame.algebra) else f", {in_words(blame.algebra)} in float32 as well"
    typed = " as it is"
    if blame.rules is not None:
        typed = f" as {SIMULATED}, {in_words(blame.typed)} as typed"
    yield f"{in_words(blame.error)}{typed}{exact}{algebra}; {run_by}"
    if blame.rules is not None:
        yield from rules_lines(blame.rules)


def _overrides(blame: Blame) -> str:
    """Entries for as many weights, the worst first, as make most of the error together."""
    entries, mended = [], 0.0
    for culprit in blame.weights:
        if culprit.remedy is not None and mended < _MENDED:
            entries.append(f"{{ {override(culprit.weight.name, culprit.remedy)} }}")
            mended += culprit.share
    return f"for compression.overrides in shards.toml: {', '.join(entries)}" if entries else ""


def describe(settings: Settings) -> str:
    """`6-bit kmeans, groups of 16`, `int8 per channel` or `fp16`."""
    if isinstance(settings, Palettize):
        tensor = settings.granularity == "per_tensor"
        groups = "one table" if tensor else f"groups of {settings.group_size}"
        return f"{settings.nbits}-bit {settings.mode}, {groups}"
    if isinstance(settings, Linear):
        return f"{settings.dtype} {settings.granularity.replace('_', ' ')}"
    return "fp16"


def override(name: str, remedy: Remedy) -> str:
    """The keys of an entry of `compression.overrides` in TOML: `weights = "u", nbits = 6`."""
    settings = remedy.settings
    names: tuple[str, ...] = ("method",)
    if isinstance(settings, Palettize):
        names += ("mode", "nbits", "granularity")
        names += () if settings.granularity == "per_tensor" else ("group_size",)
    elif isinstance(settings, Linear):
        names += ("dtype", "granularity")
    keys = {"weights": name} | {each: getattr(settings, each) for each in names}
    return ", ".join(f"{key} = {toml_text(value)}" for key, value in keys.items())
