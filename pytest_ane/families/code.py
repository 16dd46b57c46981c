"""Modules of the user's that a manifest names: found beside it or installed, imported, digested."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pytest_ane.core.digests import file_digest
from pytest_ane.core.errors import ManifestError
from pytest_ane.manifest import FAMILIES, Manifest


def search_beside(manifest: Manifest) -> None:
    """Let modules beside a manifest be imported, before installed ones, if it names any."""
    models = manifest.models
    own = any(model.builder or (model.family or FAMILIES[0]) not in FAMILIES for model in models)
    folder = str(manifest.path.absolute().parent)
    if own and folder not in sys.path:
        sys.path.insert(0, folder)


def import_code(name: str, key: str) -> ModuleType:
    """Import a module that a manifest's key names.

    Raises:
        ManifestError: there is none, or it fails.
    """
    try:
        return import_module(name)
    # A module may raise anything, SystemExit included, while it is imported.
    except (Exception, SystemExit) as error:
        raise ManifestError(f"{key}: {name} cannot be imported: {said(error, name)}.") from error


def said(error: BaseException, module: str) -> str:
    """An error in one line, with the last line of the user's own module that led to it."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    file = getattr(sys.modules.get(module), "__file__", None) or _origin(module)
    own = [f for f in traceback.extract_tb(error.__traceback__) if file and f.filename == file]
    return f"{text} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else text


def code_digests(module: str) -> dict[str, str]:
    """SHA-256 of the source a module is made of, by file, without importing it.

    These are the Python files of its top-level package, or the one file of a module that is in
    none. What it imports from elsewhere is not seen.
    """
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except ValueError:
        spec = None
    if spec is None:
        raise ManifestError(f"{module} is neither beside the manifest nor installed.")
    if spec.submodule_search_locations is None:
        return {top: file_digest(Path(spec.origin))} if spec.has_location and spec.origin else {}
    folders = [Path(location) for location in spec.submodule_search_locations]
    return {
        f"{top}/{file.relative_to(folder).as_posix()}": file_digest(file)
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
    }


def _origin(module: str) -> str | None:
    """The file of a module whose import failed, so that it is not among those loaded."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None
