"""`pytest-ane init`: write a commented shards.toml, of a model you have, and own gates."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_ane.cli.output import Output
from pytest_ane.manifest import json_schema
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.project.suite import shipped
from pytest_ane.tools._init_packages import Made, of_packages, render
from pytest_ane.tools._init_source import SOURCES, of_source

EXAMPLE = "pytest-ane init --from Qwen3-0.6B --no-gates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the model that the manifest is of, and whether gates are written."""
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=Path(), help="default: here")
    add("--from", dest="source", metavar="SOURCE", help=SOURCES)
    add("--no-gates", dest="gates", action="store_false", help="write the manifest only")
    words = "a package of yours for the manifest to gate; may be given several times"
    add("--package", action="append", type=Path, default=[], metavar="PACKAGE", help=words)
    words = (
        "what the package is compared with, such as its uncompressed form or golden tensors; "
        "one for each --package, in their order, or none"
    )
    add("--reference", action="append", default=[], metavar="REFERENCE", help=words)
    words = "write nothing: print the JSON Schema of shards.toml, with which editors complete it"
    add("--schema", action="store_true", help=words)


def run(options: argparse.Namespace) -> Output:
    """Write `shards.toml` and `gates/` into a folder, or print the schema; nothing is overwritten.

    The manifest is an example, with `--from` of that model, or with `--package` of these packages
    as they are found.
    """
    if options.schema:
        yield from json.dumps(schema := json_schema(), indent=2).split("\n")
        return schema
    folder: Path = options.folder
    if folder.is_file():
        raise ManifestError(f"{folder} is a file; name a folder for shards.toml.")
    manifest, own = folder / "shards.toml", folder / "gates"
    files = (manifest, own) if options.gates else (manifest,)
    for path in files:
        if path.exists():
            raise ManifestError(f"{path} exists; nothing was written. Move it away first.")
    made = _made(options, manifest)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield from save(made, manifest)
        if options.gates:
            shutil.copytree(shipped(), own, ignore=shutil.ignore_patterns("__pycache__"))
            yield f"wrote {own} (used in place of the gates that pytest-ane ships)"
    except OSError as error:
        raise ManifestError(f"{error.filename} cannot be written: {error.strerror}.") from error
    for line in made.lines:
        if line.startswith("next: ") and not folder.samefile(Path()):
            yield f"next: cd {shlex.quote(str(folder))}"
        yield line
    return {"written": files, **made.facts}


def save(made: Made, manifest: Path) -> Iterator[str]:
    """Write a manifest, and what belongs beside it."""
    manifest.write_text(made.text, encoding="utf-8")
    yield f"wrote {manifest}"
    for name, data in made.files.items():
        manifest.with_name(name).write_bytes(data)
        yield f"wrote {manifest.with_name(name)}"


def _made(options: argparse.Namespace, manifest: Path) -> Made:
    packages = options.package or options.reference
    if options.source is not None and packages:
        raise ManifestError(
            "--from and --package were both given; a manifest is of one or the other."
        )
    if options.source is not None:
        return of_source(options.source, manifest)
    if packages:
        return of_packages(options.package, options.reference, manifest)
    return Made(render("example.toml"), ("next: pytest --ane-shards=L01 -m gate",), {})
