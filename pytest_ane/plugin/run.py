"""What the processes of one run share: a folder in the cache with small files of JSON.

It helps, and nothing depends on it: on a disk that takes no more files each process finds out by
itself what it could have read here.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pytest_ane.build import Cache
from pytest_ane.build.scratch import temporary_files_in
from pytest_ane.core.errors import ManifestError
from pytest_ane.core.files import write_atomically
from pytest_ane.manifest.problems import label

_ID = "ane_run"
_KEY = pytest.StashKey[str]()


def run_id(config: pytest.Config) -> str:
    """The run's name: the same in the process that started it and in all xdist workers."""
    given = getattr(config, "workerinput", {}).get(_ID)
    return str(given or config.stash.setdefault(_KEY, uuid.uuid4().hex))


def tell(workerinput: dict[str, Any], config: pytest.Config) -> None:
    """Give a worker that is about to start the run's name."""
    workerinput[_ID] = run_id(config)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def worker(config: pytest.Config) -> str:
    """`gw0`, or `main` without xdist."""
    return str(getattr(config, "workerinput", {}).get("workerid", "main"))


def use_folder(folder: Path, manifest: Path) -> ExitStack:
    """Let temporary files be made in a manifest's `tmpdir` until the stack is closed.

    Raises:
        ManifestError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ManifestError(
            f"{label(manifest)}: [run] tmpdir: {folder} cannot be written ({error.strerror}); "
            "name another folder."
        ) from None
    stack = ExitStack()
    stack.enter_context(temporary_files_in(folder))
    return stack


class Run:
    """The shared folder; made when first written to."""

    def __init__(self, cache: Cache, name: str) -> None:
        self._name = f"run-{name}"
        self._cache = cache
        self.folder = cache.root / "tmp" / self._name

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep others from sweeping the folder away, and remove it at the end."""
        lock = self._cache.lock(self._name)
        with suppress(OSError):
            lock.acquire()
        try:
            yield
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                lock.release()
                Path(lock.lock_file).unlink()

    def write(self, name: str, value: Any) -> None:
        """Put a value in place in one step."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"{name}.json", json.dumps(value).encode())

    def read(self, prefix: str) -> list[Any]:
        """All values whose names begin so."""
        found = []
        for path in sorted(self.folder.glob(f"{prefix}*.json")):
            with suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return found

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One process at a time; a killed one lets go."""
        with ExitStack() as stack:
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(self.folder / f"{name}.lock"))
            yield
