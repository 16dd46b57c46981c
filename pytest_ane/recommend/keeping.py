"""A backend that keeps what it loaded: stacks of a search have most shards in common."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pytest_ane.backends import Backend, Runner


class Keeping:
    """A backend whose runners stay loaded until they are forgotten."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.on_device = backend.name, backend.on_device
        self._backend = backend
        self._runners: dict[Path, Runner] = {}

    def load(self, artifact: Path) -> Runner:
        """A runner, loaded now or before."""
        if artifact not in self._runners:
            self._runners[artifact] = self._backend.load(artifact)
        return self._runners[artifact]

    def fresh(self, artifact: Path) -> Runner:
        """A runner that is not kept, unless it is already."""
        return self._runners.get(artifact) or self._backend.load(artifact)

    def forget(self, artifact: Path | None = None, *, keep: Collection[Path] = ()) -> None:
        """Let go of one runner, or of all but some."""
        gone = [artifact] if artifact else [path for path in self._runners if path not in keep]
        for path in gone:
            self._runners.pop(path, None)

    def provenance(self) -> dict[str, str]:
        """The backend's own."""
        return self._backend.provenance()
