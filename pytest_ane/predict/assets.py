"""Model assets: compiled models on disk, or packages handed over as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from pytest_ane.errors import ProgramError
from pytest_ane.mil.paths import stays_inside


class _MLModelAssetProxy:
    """A model to load from.

    Attributes:
        path: its folder; one made from memory is deleted with the proxy.
    """

    def __init__(self, path: Path, keep: Any = None) -> None:
        self.path = path
        self._keep = keep


def from_path(path: str) -> Any:
    """coremltools' asset of a compiled model."""
    from coremltools.models.model import MLModelAsset

    return MLModelAsset(_MLModelAssetProxy(Path(path)))


def from_memory(specification: bytes, blobs: Mapping[str, bytes]) -> Any:
    """coremltools' asset of a specification and its weights files by name.

    Raises:
        ProgramError: a name that leaves the package.
    """
    from coremltools.models.model import MLModelAsset

    folder = TemporaryDirectory(prefix="pytest-ane-asset-")
    package = Path(folder.name) / "model.mlpackage"
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
    return MLModelAsset(_MLModelAssetProxy(package, folder))
