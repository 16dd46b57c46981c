"""One shard's artifact: the user's own package, or one built from its source and cached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_ane.build.cache import Cache
from pytest_ane.build.record import PACKAGE, Artifact, BuildRecord
from pytest_ane.core.digests import key_digest
from pytest_ane.core.errors import BuildError
from pytest_ane.families import Buildable
from pytest_ane.manifest import Shard, Uncompressed
from pytest_ane.mil import read_model

BUILD_VERSION = 5
"""Raised whenever a change in this package alters what is built."""


def build_shard(
    shard: Shard,
    cache: Cache,
    *,
    identity: dict[str, Any],
    model: Callable[[], Buildable],
    source: Artifact | None = None,
) -> Artifact:
    """The shard's artifact from the cache, built first if it is not there.

    Args:
        shard: what to build; one with an `artifact` of its own is only looked up.
        cache: where artifacts are kept.
        identity: what the model's weights and family depend on, part of the cache key.
        model: opens the model; called only when something must be built.
        source: the shard as `uncompressed` gives it, to be compressed in place of converting it
            once more; the same bytes come of it.

    Raises:
        BuildError: conversion or compression failed, or the disk is full.
    """
    if shard.artifact is not None:
        if not shard.artifact.exists():
            raise BuildError(
                f"{shard.qualified}: the artifact {shard.artifact} does not exist; "
                "check the path in shards.toml."
            )
        return Artifact(shard.artifact)
    key = artifact_key(shard, identity)
    folder = cache.get_or_make(
        "artifacts",
        key_digest(key),
        lambda folder: (
            _compress(shard, source, key, folder)
            if source is not None
            else _build(shard, key, model(), folder)
        ),
    )
    return Artifact.of_entry(folder)


def uncompressed(
    shard: Shard, cache: Cache, *, identity: dict[str, Any], model: Callable[[], Buildable]
) -> Artifact:
    """The shard as converted, all weights in fp16, from the cache or converted now."""
    plain = shard.model_copy(update={"compression": Uncompressed()})
    return build_shard(plain, cache, identity=identity, model=model)


def compressed(shard: Shard, source: Artifact, folder: Path) -> Artifact:
    """As `build_shard` with a source, into a folder of the caller's instead of the cache.

    Raises:
        BuildError: a setting is refused, or a weight cannot be compressed.
    """
    _compress(shard, source, {}, folder)
    return Artifact.of_entry(folder)


def _compress(shard: Shard, source: Artifact, key: dict[str, Any], folder: Path) -> None:
    from pytest_ane.build.compress import compress_package

    assert source.record is not None
    start = time.perf_counter()
    notes = compress_package(source.path, shard.requested, folder / PACKAGE, shard.qualified)
    _finish(folder, source.path, BuildRecord(key, source.record.description, notes, 0.0), start)


def artifact_key(shard: Shard, identity: dict[str, Any]) -> dict[str, Any]:
    """Everything a built package depends on; its digest names the cache entry."""
    return {
        **identity,
        "build": BUILD_VERSION,
        "shard": shard.id,
        "max_tokens": shard.max_tokens,
        "context": shard.context,
        "target": shard.target,
        "compression": shard.requested.model_dump(mode="json"),
        "coremltools": version("coremltools"),
        "torch": version("torch"),
    }


def _build(shard: Shard, key: dict[str, Any], model: Buildable, folder: Path) -> None:
    from pytest_ane.build.compress import compress
    from pytest_ane.build.convert import convert
    from pytest_ane.build.quiet import converter_notes

    start = time.perf_counter()
    with converter_notes():
        converted = convert(
            model.conversion(shard.id),
            max_tokens=shard.max_tokens,
            target=shard.target,
            subject=shard.qualified,
        )
    notes = compress(converted, shard.requested, folder / PACKAGE, shard.qualified)
    record = BuildRecord(key, model.description, notes, 0.0)
    _finish(folder, Path(converted.package_path), record, start)


def _finish(folder: Path, plain: Path, record: BuildRecord, start: float) -> None:
    """Give the package its one form, check it, and measure it against the uncompressed one."""
    from pytest_ane.build.canonical import canonicalize
    from pytest_ane.build.distortion import distortions
    from pytest_ane.mil.blob import check_blobs

    canonicalize(folder / PACKAGE)
    # A package that the disk cut short must not become an entry.
    check_blobs(built := read_model(folder / PACKAGE))
    errors = distortions(built, read_model(plain))
    seconds = round(time.perf_counter() - start, 3)
    replace(record, seconds=seconds, distortions=errors).write(folder)
