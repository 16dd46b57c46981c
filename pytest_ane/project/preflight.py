"""Before the first build: what is still to be built, and whether the disk will take it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytest_ane.gates.verdict import counted
from pytest_ane.make.disk import Estimate, Volume, estimate, temporary_folder, volumes
from pytest_ane.make.record import PACKAGE
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import DiskError, NotRunError

_ABSENT = "not installed"
_PACKAGES = ("coremltools", "torch", "numpy", "numba", "pytest", "pytest-xdist")


@dataclass
class Preflight:
    """What a run will build of the shards whose gates are run.

    `entry` tells where in the cache a shard is, or will be; `store` may have them already.
    """

    shards: Sequence[Shard]
    root: Path
    entry: Callable[[Shard], Path]
    builds: int
    store: str = ""
    _entries: dict[str, Path] = field(default_factory=dict)
    _refused: bool = False

    @property
    def missing(self) -> list[Shard]:
        """Shards still to be built."""
        return [s for s in self.shards if not s.artifact and not self._entry(s).is_dir()]

    def needs(self) -> Estimate:
        """What they will take, model by model."""
        missing = self.missing
        return estimate(
            ([s for s in missing if s.model == name], self._finished(name))
            for name in dict.fromkeys(shard.model for shard in missing)
        )

    def volumes(self) -> tuple[Volume, ...]:
        """Where they will be written."""
        return volumes(self.root, temporary_folder(), self.needs(), self.builds)

    def check(self) -> None:
        """Raise `DiskError` where the disk is plainly too small; then `NotRunError`, said once."""
        if not (small := [volume for volume in self.volumes() if volume.too_small]):
            return
        if self._refused:
            raise NotRunError("not run: the disk is too small, as the first failure says")
        self._refused = True
        where = "; ".join(map(str, small))
        raise DiskError(
            f"The disk is too small for {counted(len(self.missing), 'shard')} still to be built: "
            f"{where}. Free some space (pytest-ane cache prune), choose another folder with "
            "--ane-cache=DIR, or select fewer shards."
        )

    def lines(self) -> Iterator[str]:
        """What to know before hours of building; nothing where nothing is built."""
        needs = self.needs()
        if not needs.count:
            return
        where = " · ".join(map(str, self.volumes()))
        work = f"to fetch from {self.store} or to build" if self.store else "to build"
        yield f"ane: {counted(needs.count, 'shard')} {work}, {self.builds} at once · {where}"
        yield f"ane: {versions(only_installed=True)}"

    def _finished(self, model: str) -> list[int]:
        entries = [self._entry(s) for s in self.shards if s.model == model and not s.artifact]
        return [tree_bytes(entry / PACKAGE) for entry in entries if entry.is_dir()]

    def _entry(self, shard: Shard) -> Path:
        if shard.qualified not in self._entries:
            self._entries[shard.qualified] = self.entry(shard)
        return self._entries[shard.qualified]


def versions(*, only_installed: bool = False) -> str:
    """`python 3.12.1, coremltools 9.0, ...`: of what decides the outcome of a build."""
    numbers = {"python": platform.python_version()}
    numbers |= {name: version_of(name) for name in _PACKAGES}
    shown = ((n, v) for n, v in numbers.items() if not only_installed or v != _ABSENT)
    return ", ".join(f"{name} {number}" for name, number in shown)


def version_of(package: str) -> str:
    """A package's version, or `not installed`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return _ABSENT
