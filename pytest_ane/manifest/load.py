"""From a file to records: read, parse, and say all that is wrong at once."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_ane.core.errors import ManifestError
from pytest_ane.manifest.base import Table
from pytest_ane.manifest.ids import is_id
from pytest_ane.manifest.problems import label, report
from pytest_ane.manifest.records import Manifest, Model, Shard
from pytest_ane.manifest.resolve import Resolver
from pytest_ane.manifest.toml import TOMLDecodeError, loads

_PLACE = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|.*)\)", re.S)


def load(path: Path) -> Manifest:
    """Read a manifest. No weights and no packages are touched.

    Raises:
        ManifestError: the file is missing, is no TOML, or says something we do not understand;
            one line for each thing that is wrong.
    """
    text = _read(path)
    resolver = Resolver(_parse(path, text), path)
    manifest = resolver.manifest()
    if manifest is None:
        raise ManifestError(report(path, text, resolver.problems))
    return manifest


def of_package(package: Path) -> Manifest:
    """A manifest of one package without a reference, for `--ane-package`.

    Raises:
        ManifestError: the package does not exist.
    """
    if not package.exists():
        raise ManifestError(f"--ane-package: {package} does not exist; check the path.")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", package.name.partition(".")[0])[:60]
    shard = Shard(
        model="package",
        id=name if is_id(name) else f"p-{name}",
        artifact=package.absolute(),
        reference="none",
    )
    return Manifest(path=package, models=(Model(name="package", shards=(shard,)),))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ManifestError(
            f"{label(path)} does not exist; run 'pytest-ane init' to write one, or name yours with "
            "--ane-manifest=FILE."
        ) from None
    except OSError as error:
        raise ManifestError(f"{label(path)} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ManifestError(f"{label(path)}:{line}: not UTF-8 text; save it as UTF-8.") from None


def _parse(path: Path, text: str) -> Table:
    try:
        document: Table = loads(text)
    except TOMLDecodeError as error:
        raise ManifestError(f"{label(path)}:{_malformed(str(error), text)}.") from None
    except RecursionError:
        raise ManifestError(f"{label(path)}: not a manifest: nested too deeply.") from None
    return document


def _malformed(error: str, text: str) -> str:
    """The parser's `Invalid value (at line 3, column 5)` as `3:5: not valid TOML: ...`."""
    found = _PLACE.fullmatch(error)
    what = found["what"] if found else error
    what = f"not valid TOML: {what[0].lower()}{what[1:]}"
    if found and found["line"]:
        return f"{found['line']}:{found['column']}: {what}"
    return f"{len(text.splitlines())}: {what}, at the end of the file"
