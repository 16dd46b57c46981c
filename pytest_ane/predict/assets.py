"""Model assets: compiled models on disk, or packages handed over as bytes."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.paths import stays_inside


class _MLModelAssetProxy:
    """A model to load from; `path` is its folder."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or temporary_folder(self)


def temporary_folder(owner: object) -> Path:
    """A folder that is deleted with its owner, or when Python ends."""
    folder = mkdtemp(prefix="pytest-ane-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def from_path(path: str) -> Any:
    """An asset of a compiled model."""
    from coremltools.models.model import MLModelAsset

    return MLModelAsset(_MLModelAssetProxy(Path(path)))


def from_memory(specification: bytes, blobs: Mapping[str, bytes]) -> Any:
    """An asset of a specification and its weights files by name.

    Raises:
        ProgramError: a name that leaves the package.
    """
    from coremltools.models.model import MLModelAsset

    asset = _MLModelAssetProxy()
    package = asset.path = asset.path / "model.mlpackage"
    data = package / "Data" / "com.apple.CoreML"
    data.mkdir(parents=True)
    (data / "model.mlmodel").write_bytes(specification)
    for name, content in blobs.items():
        if not stays_inside(name):
            raise ProgramError(f"the weights file {name!r} lies outside the model.")
        file = data / "weights" / PurePosixPath(name).name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    entries = {"model": {"path": "com.apple.CoreML/model.mlmodel"}}
    manifest = {"itemInfoEntries": entries, "rootModelIdentifier": "model"}
    (package / "Manifest.json").write_text(json.dumps(manifest))
    return MLModelAsset(asset)
