"""A manifest with a shard for each function of packages that have several, and of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ane.manifest import Manifest, Model, Shard, load
from pytest_ane.manifest.ids import is_subject, of_function
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import entry_points, is_pipeline


def read_manifest(path: Path) -> Manifest:
    """Read a manifest, and the names of functions in the packages it names."""
    return expanded(load(path))


def expanded(manifest: Manifest) -> Manifest:
    """A manifest with a shard for each function of packages that have several.

    `decoder` becomes `decoder[decode]` and `decoder[verify4]`, unless its table chooses a function.
    A pipeline `yolo` stays, and `yolo[NAME]` of each ML Program in it follows.
    A shard of a family or a builder stays one, because it stands in their chain. So does one whose
    package is missing or damaged: its gates say what is wrong.
    """
    return manifest.model_copy(update={"models": tuple(map(_expanded, manifest.models))})


def _expanded(model: Model) -> Model:
    names = {shard.id: _entry_points(shard) for shard in model.shards}
    if not any(names.values()):
        return model
    chain = bool(model.family or model.builder)
    shards = {s.id: [s] if chain else list(_functions(s, names[s.id])) for s in model.shards}
    gated = {(s.artifact, s.function) for of in shards.values() for s in of}

    def noted(shard: Shard, functions: tuple[str, ...]) -> Shard:
        """A shard that knows which functions its table leaves out."""
        left = [name for name in functions if (shard.artifact, name) not in gated]
        return shard.model_copy(update={"ungated": tuple(left)}) if shard.function else shard

    return model.model_copy(
        update={
            "shards": tuple(noted(s, names[id]) for id, of in shards.items() for s in of),
            "canary": tuple(s.id for id in model.canary for s in shards[id]),
        }
    )


def _functions(shard: Shard, names: tuple[str, ...]) -> Iterator[Shard]:
    """A shard for each function of its package, or the one it is."""
    if shard.function is not None or not names:
        yield shard
        return
    assert shard.artifact is not None
    update: dict[str, object] = {}
    if is_pipeline(shard.artifact):
        yield shard.model_copy(update={"pipeline": True})
        update = _without_wholes(shard)
    for name in names:
        id = of_function(shard.id, name)
        yield shard.model_copy(update={**update, "id": id, "function": name})


def _without_wholes(shard: Shard) -> dict[str, object]:
    """A part is compared with that of a pipeline alone: what is of the whole is the whole's."""
    update: dict[str, object] = {}
    if shard.reference != "none" and not _is_pipeline(shard.reference):
        update["reference"] = "none"
    if shard.uncompressed is not None and not _is_pipeline(shard.uncompressed):
        update["uncompressed"] = None
    return update


def _is_pipeline(package: Path | str) -> bool:
    try:
        return isinstance(package, Path) and is_pipeline(package)
    except ProgramError:
        return False


def _entry_points(shard: Shard) -> tuple[str, ...]:
    """Names of the functions of a shard's package, if it has several."""
    if shard.artifact is None:
        return ()
    try:
        names = entry_points(shard.artifact)
    except ProgramError:
        return ()
    ids = {of_function(shard.id, name) for name in names}
    return names if len(ids) == len(names) and all(map(is_subject, ids)) else ()
