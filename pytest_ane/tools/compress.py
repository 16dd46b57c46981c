"""`pytest-ane compress`: compress a package's weights, and say what became of each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.output import Failed, Output, tell, terminal_width
from pytest_ane.mlprogram.errors import BuildError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.gates.verdict import Table
    from pytest_ane.make.outcome import Outcome
    from pytest_ane.mlprogram.records import MLModel
    from pytest_ane.mlprogram.weights import Weight

EXAMPLE = "pytest-ane compress fp16.mlpackage --nbits 4 --keep 'head*' -o out.mlpackage"

_IOS18 = 9
"""The specification version of iOS 18, the first with palettes in groups."""
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
    parser.add_argument("package", type=Path, help="an .mlpackage of an ML Program")
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="PACKAGE", help="the new .mlpackage"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an .mlpackage at --out")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a compression table as in shards.toml (TOML); options go before its keys",
    )
    for key, kind, name, text in _SETTINGS:
        parser.add_argument(f"--{key.replace('_', '-')}", type=kind, metavar=name, help=text)
    parser.add_argument(
        "--keep", action="append", metavar="GLOB", help="leave these weights as they are"
    )
    parser.add_argument(
        "--override",
        action="append",
        metavar="KEYS",
        help="other settings for some weights, such as 'weights = \"gate*\", nbits = 8'",
    )


def run(options: argparse.Namespace) -> Output:
    """Write a copy of a package with compressed weights; list them, and those left as they are.

    It fails, and writes nothing, where no weight was compressed.
    """
    from pytest_ane.make.compress import compress_own_package
    from pytest_ane.make.outcome import outcomes
    from pytest_ane.manifest import read_compression
    from pytest_ane.mlprogram.atomic import replacing_folder
    from pytest_ane.mlprogram.digests import tree_bytes
    from pytest_ane.mlprogram.model import read_model
    from pytest_ane.report.table import table

    source, out = options.package, options.out
    _check(source, out, overwrite=options.overwrite)
    keys, plain = _settings(options), read_model(source)
    asked = "granularity" in keys or "group_size" in keys
    palettes = keys.get("method", "palettize") == "palettize" and not asked
    if palettes and plain.specification_version < _IOS18:
        keys["granularity"] = "per_tensor"
        yield "one palette for each weight: palettes in groups need a package for iOS 18"
    try:
        compression = read_compression(keys)
    except ManifestError as error:
        raise ManifestError(_as_options(str(error), options)) from None
    try:
        with replacing_folder(out) as new:
            tell(f"compressing {source.name}")
            notes = compress_own_package(source, compression, new, _progress)
            tell("comparing weights")
            weights = outcomes(plain, read_model(new), compression, notes)
            tell("")
            several = len(plain.program.functions) > 1
            yield from table(_table(weights, several=several), terminal_width())
            yield from (useless := [*_unmatched(plain, options)])
            data = {"compression": compression, "notes": notes, "weights": [*map(_data, weights)],
                    "unmatched": useless}  # fmt: skip
            if not any(each.compressed for each in weights):
                raise _Nothing
            sizes = tree_bytes(source), tree_bytes(new)
    except _Nothing:
        remedies = (do for said, do in _REMEDIES.items() if any(said in w.reason for w in weights))
        return Failed(
            f"{source}: no weight was compressed, each for the reason given, so {out} was not "
            f"written; {next(remedies, 'choose settings that fit')}.",
            data,
        )
    except BuildError as error:
        told = str(error).replace("name it in compression.keep", "name it with --keep")
        raise BuildError(told) from None
    except OSError as error:
        raise BuildError(f"{out} cannot be written: {error.strerror or error}.") from None
    finally:
        tell("")
    done, (before, after) = [each for each in weights if each.compressed], sizes
    yield (
        f"{len(done)} of {len(weights)} weights compressed; the package has {after:,} bytes, "
        f"{before:,} before ({before / after:.2f}x smaller)"
    )
    lossy = [(e.error.snr, e.name) for e in done if e.error and e.error.snr < math.inf]
    if lossy:
        snr, worst = min(lossy)
        yield f"lowest SNR: {snr:.1f} dB, {worst}"
    yield f"wrote {out}"
    return {**data, "written": out, "bytes_before": before, "bytes": after}


class _Nothing(Exception):
    """No weight was compressed, so that nothing is written."""


_REMEDIES = {
    "divisible by group_size": "give --granularity per_tensor, or a --group-size that divides them",
    "engine = 'coremltools'": "give --engine coremltools",
    "compressed already": "compress the package that it was made from",
    "kept by": "choose settings that fit",
    "(weight_threshold)": "give a smaller --weight-threshold",
}
"""What to do where nothing was compressed, by words of the reasons, the first that fits."""


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The keys of a compression table: the file's, and the options before them."""
    table = read_table("--config", options.config) if options.config else {}
    table, whole = table.get("compression", table), table
    if not isinstance(table, dict) or "models" in whole:
        raise ManifestError(
            f"--config {options.config}: must hold a compression table, and nothing else."
        )
    given = {key: getattr(options, key) for key, *_ in _SETTINGS}
    given |= {"keep": options.keep, "overrides": [*map(_override, options.override or ())] or None}
    return table | {key: x for key, x in given.items() if x is not None}


def _as_options(message: str, options: argparse.Namespace) -> str:
    """What is wrong with a key, in the words of the option that set it."""
    for key, *_ in _SETTINGS:
        if getattr(options, key) is not None:
            option = f"--{key.replace('_', '-')}"
            message = message.replace(f"[compression] {key} = ", f"{option} ")
            message = message.replace(
                f"[compression] unknown key '{key}': it belongs in another table",
                f"{option}: not a key of this method",
            )
    return message


def _unmatched(model: MLModel, options: argparse.Namespace) -> Iterator[str]:
    """Lines on options that name no weight; a table may be of several packages."""
    from pytest_ane.make.outcome import unmatched

    overrides = [_override(text).get("weights") for text in options.override or ()]
    for option, globs in (("--keep", options.keep or ()), ("--override", filter(None, overrides))):
        for glob in unmatched(model, globs):
            yield f"{option} {glob}: no weight in the list has such a name"


def read_table(option: str, file: Path) -> dict[str, Any]:
    """The TOML file that an option names.

    Raises:
        ManifestError: it cannot be read.
    """
    from pytest_ane.manifest.base import TOMLDecodeError, loads

    try:
        return loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ManifestError(f"{option} {file} cannot be read: {error.strerror}.") from None
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{option} {file}: not valid TOML: {error}.") from None


def _override(text: str) -> dict[str, Any]:
    from pytest_ane.manifest.base import TOMLDecodeError, loads

    try:
        table: dict[str, Any] = loads(f"it = {{ {text} }}")["it"]
    except (TOMLDecodeError, RecursionError):
        raise ManifestError(
            f"--override {text}: write keys as TOML does, such as 'weights = \"gate*\", nbits = 8'."
        ) from None
    return table


def _check(source: Path, out: Path, *, overwrite: bool) -> None:
    """Refuse what is no package, and an output that would harm something."""
    from pytest_ane.mlprogram.model import is_pipeline

    if not source.exists():
        raise BuildError(f"{source}: no such package; check the path.")
    if source.suffix == ".mlmodelc":
        raise BuildError(f"{source}: is compiled; compress the .mlpackage that it was made from.")
    if is_pipeline(source):
        raise BuildError(f"{source}: is a pipeline; compress its models before they are joined.")
    if out.suffix != ".mlpackage":
        raise BuildError(f"{out}: the new package's name must end in .mlpackage.")
    here, there = source.resolve(), out.resolve()
    if here == there:
        raise BuildError(f"{out}: is the package itself; name another place with --out.")
    if here in there.parents or there in here.parents:
        raise BuildError(f"{out}: lies in {source}, or around it; name another place with --out.")
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


def _table(weights: Sequence[Outcome], *, several: bool) -> Table:
    from pytest_ane.gates.verdict import Column, Table

    heads = ("weight", "functions", "shape", "before", "after", "bytes", "bytes after")
    columns = (*map(Column, heads), Column("SNR", "dB"), Column("not compressed"))
    rows = tuple(
        (
            each.name,
            ", ".join(each.functions) if several else "",
            "x".join(map(str, each.before.shape)),
            _form(each.before),
            _form(each.after) if each.compressed else "",
            each.before.compressed_bytes,
            each.after.compressed_bytes if each.compressed else None,
            each.error.snr if each.error else None,
            each.reason,
        )
        for each in weights
    )
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
    def stored(weight: Weight) -> dict[str, Any]:
        size = weight.compressed_bytes
        return {"stored": weight.storage, "nbits": weight.nbits, "bytes": size}

    errors = {"sse": each.error.sse, "snr_db": each.error.snr} if each.error else {}
    return {
        "name": each.name,
        "functions": each.functions,
        "shape": each.before.shape,
        "compressed": each.compressed,
        "before": stored(each.before),
        "after": stored(each.after),
        **errors,
        "reason": each.reason,
    }
