"""One package for one content: what Core ML Tools leaves to chance or takes from the machine.

Two builds of a shard would differ in the random identifiers of `Manifest.json`, the order of
protobuf's maps, the day, and the kind of torch. Evidence names files by digest, and a shard is
built where its evidence is recorded and again where it is verified.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pytest_ane.core.digests import file_digest, tree_digest
from pytest_ane.mil.package import parse_package
from pytest_ane.mil.proto import canonical_bytes

_OF_COREMLTOOLS = "com.github.apple.coremltools."
"""The metadata keys that coremltools 9.0 sets itself (`models/model.py`)."""


def canonicalize(package: Path) -> None:
    """Rewrite an `.mlpackage`'s model file and manifest in their one form; weights stay.

    The model's maps are sorted by key, and its metadata loses the day of conversion and what marks
    a torch as a build for one machine (`2.13.0+cpu`). An item's identifier is the UUID (version 5)
    of its path and its content's digest.

    Raises:
        ProgramError: the package is damaged.
    """
    file, message = parse_package(package)
    _without_machine(message)
    file.write_bytes(canonical_bytes(message))
    manifest = package / "Manifest.json"
    manifest.write_text(_identified(json.loads(manifest.read_text()), package / "Data"))


def _without_machine(message: Any) -> None:
    """The metadata say it for people, the program's `buildInfo` says it again."""
    metadata = message.description.metadata.userDefined
    metadata.pop(f"{_OF_COREMLTOOLS}conversion_date", None)
    if source := metadata.get(key := f"{_OF_COREMLTOOLS}source"):
        metadata[key] = _public(source)
    if "buildInfo" in (attributes := message.mlProgram.attributes):
        for pair in attributes["buildInfo"].immediateValue.dictionary.values:
            texts = pair.value.immediateValue.tensor.strings.values
            texts[:] = map(_public, texts)


def _public(version: str) -> str:
    """A version without what follows the plus sign: its local part (PEP 440)."""
    return version.partition("+")[0]


def _identified(manifest: dict[str, Any], data: Path) -> str:
    items = manifest["itemInfoEntries"]
    names = {old: _identifier(item["path"], data / item["path"]) for old, item in items.items()}
    manifest["itemInfoEntries"] = {names[old]: item for old, item in items.items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    return json.dumps(manifest, indent=4, sort_keys=True) + "\n"


def _identifier(name: str, path: Path) -> str:
    digest = tree_digest(path) if path.is_dir() else file_digest(path)
    return str(uuid5(NAMESPACE_URL, f"{name} {digest}"))
