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
    from pytest_ane.analysis.measured import Measured
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Model, Shard

_PACKAGES = (".mlpackage", ".mlmodelc")
_DEFAULT = "M4 Max"
_MOST = 64
"""Largest T of a package that a manifest does not describe."""


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
    """The resource that limits each kind of shards, and what would help.

    Args:
        path: a manifest, or a package.
        model: of a manifest of several.
        device: a chip, `this machine` or a profile; None for this Mac's chip, else the M4 Max.
        bandwidth: GB/s in place of the device's own.
        peak: TFLOP/s in place of the device's own.
        lanes: elements to which the last axis is padded, in place of the device's own.
        tokens: the T besides 1; None for the shards' largest.
        measured: tokens a second, `9.25` at T = 1 or `4=8.28`; or a file as `read_measured` has it.
        cache: the cache folder.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.analysis.bound import Group, bound_call, costs_of
    from pytest_ane.analysis.costs import largest_tokens
    from pytest_ane.build import Cache
    from pytest_ane.report.bound import lines

    if path.suffix not in _PACKAGES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    store = Cache(cache)
    profile = _device(device, store, bandwidth=bandwidth, peak=peak, lanes=lanes)
    if path.suffix in _PACKAGES:
        name, groups = path.name, [Group("package", path.name, 1, costs_of(path))]
        most = largest_tokens(path, _MOST)
    else:
        name, groups, most = _model(path, model, cache)
    speeds = [_measured(text, name, profile) for text in measured]
    wanted = dict.fromkeys((1, most if tokens is None else tokens, *(s.tokens for s in speeds)))
    calls = [bound_call(groups, profile, t) for t in wanted]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from lines(name, profile, groups, calls, speeds)


def _device(name: str | None, cache: Cache, **figures: float | None) -> Device:
    from pytest_ane.analysis.devices import find_device

    device = find_device(name or _chip(), cache.root)
    changes = {key: value for key, value in figures.items() if value is not None}
    if not changes:
        return device
    changed = f"{device.name} with another {', '.join(changes)}"
    return device.model_copy(update=changes | {"name": changed})


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


def _measured(text: str, model: str, device: Device) -> Measured:
    from pytest_ane.analysis.measured import Measured, read_measured

    if text.endswith(".json"):
        return read_measured(Path(text), model, device)
    tokens, _, tok_s = text.rpartition("=")
    where = device.name.partition(" with ")[0]
    try:
        return Measured(
            runtime="measured",
            device=where,
            model=model,
            tok_s=float(tok_s),
            tokens=int(tokens or 1),
        )
    except ValueError:
        raise ManifestError(
            f"--measured {text}: give tokens a second, such as 9.25, 4=8.28 for calls of T = 4, "
            "or a .json file: a run of pytest-benchmark, or another runtime's speed."
        ) from None


def _model(path: Path, name: str | None, cache: Path | None) -> tuple[str, list[Group], int]:
    """A manifest's model: its name, its groups of shards, and its largest T."""
    from pytest_ane.analysis.bound import counted, same_costs
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

        def kind(shard: Shard) -> str:
            return kinds.get(shard.id, shard.id)

        def layout(shard: Shard) -> object:
            """How a shard is fed; those of a family that are fed alike cost the same."""
            return family.layout(shard) if family else shard.id

        groups = []
        in_order = sorted(model.shards, key=lambda shard: order.get(shard.id, len(order)))
        for shards in same_costs(in_order, kind, layout):
            tell(f"{kind(shards[0])}: {len(shards)} shards")
            groups += counted(
                kind(shards[0]), shards, project.package, lambda s: project.artifact(s).path
            )
        tell("")
    return model.name, groups, _largest(model)


def _largest(model: Model) -> int:
    """The largest T that all shards take: the manifest's, or less where own packages take less."""
    from pytest_ane.analysis.costs import largest_tokens

    own = [shard.artifact for shard in model.shards if shard.artifact is not None]
    known = [largest_tokens(path, model.max_tokens) for path in own]
    return min((t for t in known if t > 1), default=1 if known else model.max_tokens)
