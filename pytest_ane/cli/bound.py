"""`pytest-ane bound`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import BackendError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.analysis.bound import Group
    from pytest_ane.analysis.devices import Device
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Model

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
        name, groups, most = _model(path, model, kept)
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
        chip = Machine.ask().chip.removeprefix("Apple ")
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


def _model(path: Path, name: str | None, cache: Cache) -> tuple[str, list[Group], int]:
    """A manifest's model: its name, what was counted, and its largest T."""
    from pytest_ane.analysis.alike import alike, counted
    from pytest_ane.cli.shards import Shards
    from pytest_ane.cli.stack import tell
    from pytest_ane.core.digests import remembered
    from pytest_ane.families import make_importable
    from pytest_ane.manifest import load
    from pytest_ane.plugin.run import use_folder

    read = load(path)
    make_importable(read)
    model = _chosen(read.models, name)
    with ExitStack() as stack:
        stack.enter_context(remembered(cache.root / "digests"))
        if read.tmpdir is not None:
            stack.enter_context(use_folder(read.tmpdir, read.path))
        shards = Shards(model, cache)
        groups = []
        for one in alike(shards.in_order, shards.kind, shards.layout):
            tell(f"{one.kind}: {len(one.shards)} shards")
            groups += counted(one, shards.built, shards.build)
        tell("")
    return model.name, groups, shards.most


def _chosen(models: Sequence[Model], name: str | None) -> Model:
    from pytest_ane.manifest.ids import nearest

    names = [model.name for model in models]
    if name is None and len(models) == 1:
        return models[0]
    if name is None:
        raise ManifestError(f"Name a model with --model; there are: {', '.join(names)}.")
    found = next((model for model in models if model.name == name), None)
    if found is None:
        raise ManifestError(
            f"--model {name}: the manifest has no such model; {nearest(name, names)}."
        )
    return found
