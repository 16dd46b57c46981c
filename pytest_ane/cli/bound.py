"""`pytest-ane bound`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import BackendError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.analysis.bound import Group
    from pytest_ane.analysis.devices import Device
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Model, Shard

_PACKAGES = (".mlpackage", ".mlmodelc")
_DEFAULT = "M4 Max"
_MOST = 64
"""The largest T that is asked of a package of unknown making."""


def run(
    path: Path,
    *,
    model: str | None,
    device: str | None,
    bandwidth: float | None,
    peak: float | None,
    lanes: int | None,
    tokens: int | None,
    measured: Sequence[str],
    cache: Path | None,
) -> Iterator[str]:
    """What limits each kind of shards, and what would help.

    Args:
        path: a manifest, or a package.
        model: of a manifest of several.
        device: a chip, `this machine` or a profile; None for this Mac's chip, else the M4 Max.
        bandwidth: GB/s in place of the device's own.
        peak: TFLOP/s in place of the device's own.
        lanes: elements the last axis is filled up to, in place of the device's own.
        tokens: the larger T, beside 1; None for the shards' largest.
        measured: tokens a second, `9.25` at T = 1 or `4=8.28`; or a stored benchmark run.
        cache: the cache folder.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.analysis.alike import largest_of
    from pytest_ane.analysis.bound import call
    from pytest_ane.build import Cache
    from pytest_ane.report.bound import lines

    if path.suffix not in _PACKAGES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    kept = Cache(cache)
    on = _device(device, kept, bandwidth, peak, lanes)
    if path.suffix in _PACKAGES:
        name, groups, most = path.name, [_package(path)], largest_of(path, _MOST)
    else:
        name, groups, most = _model(path, model, cache)
    rates = dict(_measured(text, name, on) for text in measured)
    wanted = dict.fromkeys((1, most if tokens is None else tokens, *rates))
    calls = [call(groups, on, t) for t in wanted]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from lines(name, on, groups, calls, rates)


def _device(
    name: str | None, cache: Cache, bandwidth: float | None, peak: float | None, lanes: int | None
) -> Device:
    from pytest_ane.analysis.devices import find_device

    given = {"bandwidth": bandwidth, "peak": peak, "lanes": lanes}
    changes = {key: value for key, value in given.items() if value is not None}
    found = find_device(name or _chip(), cache.root)
    if not changes:
        return found
    changed = ", ".join(changes)
    return found.model_copy(update=changes | {"name": f"{found.name} with another {changed}"})


def _chip() -> str:
    """This Mac's chip if its figures are known, else that of the published ZAYA1 runs."""
    if sys.platform != "darwin":
        return _DEFAULT
    from pytest_ane.analysis.devices import published
    from pytest_ane.backends.coreml.machine import Machine

    try:
        chip = Machine.detect().chip.removeprefix("Apple ")
    except BackendError:
        return _DEFAULT
    return chip if chip in published() else _DEFAULT


def _measured(text: str, name: str, device: Device) -> tuple[int, float]:
    """T and tokens a second."""
    if text.endswith(".json"):
        from pytest_ane.analysis.measured import decoded

        return 1, decoded(Path(text), name, device)
    tokens, _, rate = text.rpartition("=")
    try:
        found = int(tokens or 1), float(rate)
    except ValueError:
        found = 0, 0.0
    if found[0] < 1 or not 0 < found[1] < float("inf"):
        raise ManifestError(
            f"--measured {text}: give tokens a second, such as 9.25, 4=8.28 for calls of T = 4, "
            "or a .json file of pytest-benchmark."
        )
    return found


def _package(path: Path) -> Group:
    from pytest_ane.analysis.alike import costs_of
    from pytest_ane.analysis.bound import Group

    return Group("package", path.name, 1, costs_of(path))


def _model(path: Path, name: str | None, cache: Path | None) -> tuple[str, list[Group], int]:
    """A manifest's model: its name, what was counted, and its largest T."""
    from pytest_ane.analysis.alike import alike, counted
    from pytest_ane.cli.status import tell
    from pytest_ane.project.choose import choose_model
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.progress import Progress
    from pytest_ane.project.project import read_project

    project = read_project(path, cache)
    model = choose_model(project.manifest, name)
    project.progress = Progress(len(model.shards), tell)
    with project.use():
        opened = project.model(model.name) if model.family else None
        family = opened if isinstance(opened, OpenModel) else None
        kinds = {wire.shard: wire.kind for wire in family.wiring} if family else {}
        order = {shard: i for i, shard in enumerate(kinds)}

        def layout(shard: Shard) -> object:
            """How a shard is fed; those of a family that are fed alike cost the same."""
            return family.layout(shard) if family else shard.id

        groups = []
        in_order = sorted(model.shards, key=lambda shard: order.get(shard.id, len(order)))
        for one in alike(in_order, lambda shard: kinds.get(shard.id, shard.id), layout):
            tell(f"{one.kind}: {len(one.shards)} shards")
            groups += counted(one, project.package, lambda shard: project.artifact(shard).path)
        tell("")
    return model.name, groups, _largest(model)


def _largest(model: Model) -> int:
    """The largest T that all shards take: the manifest's, or less where own packages take less."""
    from pytest_ane.analysis.alike import largest_of

    own = [shard.artifact for shard in model.shards if shard.artifact is not None]
    known = [largest_of(path, model.max_tokens) for path in own]
    return min((t for t in known if t > 1), default=1 if known else model.max_tokens)
