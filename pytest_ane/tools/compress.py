"""`pytest-ane compress`: compress a package's weights, and say what became of each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_ane.cli.output import Failed, Output, tell, terminal_width
from pytest_ane.gates.verdict import Column, Table
from pytest_ane.make.compress import compress_own_package
from pytest_ane.make.outcome import Outcome, outcomes, unmatched
from pytest_ane.manifest import read_compression
from pytest_ane.manifest.base import TOMLDecodeError, loads
from pytest_ane.mlprogram.atomic import replacing_folder
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import BuildError, ManifestError
from pytest_ane.mlprogram.model import is_pipeline, read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import Weight
from pytest_ane.report.table import table

EXAMPLE = "pytest-ane compress fp16.mlpackage --nbits 4 --keep 'head*' -o out.mlpackage"

_SETTINGS: tuple[tuple[str, type, str, str], ...] = (
    ("method", str, "METHOD", "palettize (default), linear or prune"),
    ("mode", str, "MODE", "kmeans (default), uniform or unique; linear_symmetric or linear"),
    ("nbits", int, "N", "bits of a palette's index: 1, 2, 3, 4 (default), 6 or 8"),
    ("dtype", str, "DTYPE", "of linear: int8 (default), uint8, int4 or uint4"),
    ("granularity", str, "G", "per_grouped_channel (default) or per_tensor; per_channel of linear"),
    ("group_size", int, "N", "output channels that share a palette (default: 32)"),
    ("block_size", int, "N", "input channels that share a scale, with per_block"),
    ("target_sparsity", float, "SHARE", "of prune: the share of weights that become zero"),
    ("weight_threshold", int, "N", "leave weights of at most this many elements (default: 2048)"),
    ("engine", str, "ENGINE", "of palettize: fast (default) or coremltools"),
)
"""The manifest's keys that are options: key, type, placeholder and help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package, where the new one goes, and the settings, which are keys of the manifest."""
    add = parser.add_argument
    add("package", type=Path, help="an .mlpackage of an ML Program")
    add("-o", "--out", type=Path, required=True, metavar="PACKAGE", help="the new .mlpackage")
    add("--overwrite", action="store_true", help="replace an .mlpackage at --out")
    words = "a compression table as in shards.toml (TOML); options go before its keys"
    add("--config", type=Path, metavar="FILE", help=words)
    for key, kind, name, text in _SETTINGS:
        add(f"--{key.replace('_', '-')}", type=kind, metavar=name, help=text)
    add("--keep", action="append", metavar="GLOB", help="leave these weights as they are")
    words = "other settings for some weights, such as 'weights = \"gate*\", nbits = 8'"
    add("--override", action="append", metavar="KEYS", help=words)


def run(options: argparse.Namespace) -> Output:
    """Write a copy of a package with compressed weights; list them, and those left as they are.

    It fails, and writes nothing, where no weight was compressed.
    """
    source, out = options.package, options.out
    _check(source, out, overwrite=options.overwrite)
    compression, plain = read_compression(_settings(options)), read_model(source)
    try:
        with replacing_folder(out) as new:
            tell(f"compressing {source.name}")
            notes = compress_own_package(source, compression, new, _progress)
            tell("comparing weights")
            weights = outcomes(plain, read_model(new), compression, notes)
            tell("")
            yield from table(_table(weights, len(plain.program.functions) > 1), terminal_width())
            yield from (useless := [*_unmatched(plain, options)])
            data = {"compression": compression, "notes": notes, "weights": [*map(_data, weights)],
                    "unmatched": useless}  # fmt: skip
            done = [each for each in weights if each.compressed]
            if not done:
                raise _Nothing
            grown = [e for e in done if e.after.compressed_bytes > e.before.compressed_bytes]
            before, after = tree_bytes(source), tree_bytes(new)
    except _Nothing:
        return Failed(
            f"{source}: no weight was compressed, each for the reason given, so {out} was not "
            "written; choose settings that fit.",
            data,
        )
    except BuildError as error:
        told = str(error).replace("name it in compression.keep", "name it with --keep")
        raise BuildError(told) from None
    except OSError as error:
        raise BuildError(f"{out} cannot be written: {error.strerror or error}.") from None
    finally:
        tell("")
    yield (
        f"{len(done)} of {len(weights)} weights compressed; the package has {after:,} bytes, "
        f"{before:,} before ({before / after:.2f}x smaller)"
    )
    lossy = [(e.error.snr, e.name) for e in done if e.error and e.error.snr < math.inf]
    if lossy:
        snr, worst = min(lossy)
        yield f"lowest SNR: {snr:.1f} dB, {worst}"
    for each in grown:
        sizes = f"{each.before.compressed_bytes:,} to {each.after.compressed_bytes:,} bytes"
        yield f"warning: {each.name} grew from {sizes}; choose larger groups, or --keep it"
    yield f"wrote {out}"
    data |= {"grown": [each.name for each in grown], "written": out}
    return {**data, "bytes_before": before, "bytes": after}


class _Nothing(Exception):
    """No weight was compressed, so that nothing is written."""


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The keys of a compression table: the file's, and the options before them."""
    whole = read_table("--config", file) if (file := options.config) else {}
    table = whole.get("compression", whole)
    if not isinstance(table, dict) or "models" in whole:
        raise ManifestError(f"--config {file}: must hold a compression table, and nothing else.")
    given = {key: getattr(options, key) for key, *_ in _SETTINGS}
    given |= {"keep": options.keep, "overrides": [*map(_override, options.override or ())] or None}
    return table | {key: x for key, x in given.items() if x is not None}


def _unmatched(model: MLModel, options: argparse.Namespace) -> Iterator[str]:
    """Lines on options that name no weight; a table may be of several packages."""
    overrides = [_override(text).get("weights") for text in options.override or ()]
    for option, globs in (("--keep", options.keep or ()), ("--override", filter(None, overrides))):
        for glob in unmatched(model, globs):
            yield f"{option} {glob}: no weight in the list has such a name"


def read_table(option: str, file: Path) -> dict[str, Any]:
    """The TOML file that an option names; `ManifestError` where it cannot be read."""
    try:
        return loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ManifestError(f"{option} {file} cannot be read: {error.strerror}.") from None
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{option} {file}: not valid TOML: {error}.") from None


def _override(text: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = loads(f"it = {{ {text} }}")["it"]
    except (TOMLDecodeError, RecursionError):
        raise ManifestError(
            f"--override {text}: write keys as TOML does, such as 'weights = \"gate*\", nbits = 8'."
        ) from None
    return table


def _check(source: Path, out: Path, *, overwrite: bool) -> None:
    """Refuse what is no package, and an output that would harm something."""
    if not source.exists():
        raise BuildError(f"{source}: no such package; check the path.")
    if source.suffix == ".mlmodelc":
        raise BuildError(f"{source}: is compiled; compress the .mlpackage that it was made from.")
    if is_pipeline(source):
        raise BuildError(f"{source}: is a pipeline; compress its models before they are joined.")
    if out.suffix != ".mlpackage":
        raise BuildError(f"{out}: the new package's name must end in .mlpackage.")
    here, there = source.resolve(), out.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise BuildError(
            f"{out}: is {source}, or lies in it or around it; name another place with --out."
        )
    if not out.parent.is_dir():
        raise BuildError(f"{out}: there is no folder {out.parent}; make it, or name another place.")
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise BuildError(f"{out} exists; --overwrite replaces it.")
    if out.is_symlink() or not (out / "Manifest.json").is_file():
        raise BuildError(f"{out} is no .mlpackage, so it is not replaced; move it away first.")


def _progress(name: str, done: int, total: int) -> None:
    tell(f"{done / total:4.0%} of {total:,} elements · {name}")


def _table(weights: Sequence[Outcome], several: bool) -> Table:
    heads = ("weight", "functions", "shape", "before", "after", "bytes", "bytes after")
    columns = (*map(Column, heads), Column("SNR", "dB"), Column("not compressed"))
    rows = tuple(
        (each.name, ", ".join(each.functions) if several else "",
         "x".join(map(str, each.before.shape)),
         _form(each.before), _form(each.after) if each.compressed else "",
         each.before.compressed_bytes, each.after.compressed_bytes if each.compressed else None,
         each.error.snr if each.error else None, each.reason)
        for each in weights
    )  # fmt: skip
    return Table("", columns, rows)


def _form(weight: Weight) -> str:
    """`fp16`, `4-bit palettes (3)`, `int8 scales (96)`, `50% zeros`."""
    if not weight.stages:
        return f"fp{weight.nbits}"
    last = next((s for s in weight.stages if not s.of_table and (s.is_palette or s.is_scale)), None)
    words = [f"{weight.sparsity:.0%} zeros"] if weight.sparsity else []
    if last is not None:
        kind = "palette" if last.is_palette else "scale"
        words.append(f"{last.nbits} bits, {last.count:,} {kind}{'s' * (last.count != 1)}")
    return ", ".join(words) or weight.storage


def _data(each: Outcome) -> dict[str, Any]:
    stored = {
        key: {"stored": w.storage, "nbits": w.nbits, "bytes": w.compressed_bytes}
        for key, w in (("before", each.before), ("after", each.after))
    }
    errors = {"sse": each.error.sse, "snr_db": each.error.snr} if each.error else {}
    about = {"name": each.name, "functions": each.functions, "shape": each.before.shape}
    return {**about, "compressed": each.compressed, **stored, **errors, "reason": each.reason}
