"""`pytest-ane bound`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_cache, add_manifest, count, positive
from pytest_ane.cli.output import Output
from pytest_ane.core.errors import BackendError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.analysis.bound import Call, Group
    from pytest_ane.analysis.devices import Device
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Model, Shard

HELP = "bound each kind of shards by bandwidth and compute, and show what would help"
EXAMPLE = "pytest-ane bound shards.toml --device 'M4 Max' --measured 9.25"
_PACKAGES = (".mlpackage", ".mlmodelc")
_DEFAULT = "M4 Max"
_MOST = 64
"""Largest T of a package that a manifest does not describe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the device, and measured speeds."""
    parser.add_argument(
        "path", nargs="?", type=Path, help="an .mlpackage or .mlmodelc, or a manifest"
    )
    add_manifest(parser)
    parser.add_argument("--model", metavar="NAME", help="of a manifest of several")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="a chip such as 'M4 Max', 'this machine', or a profile FILE.toml "
        "(default: this Mac's chip, elsewhere M4 Max)",
    )
    parser.add_argument("--bandwidth", type=positive, metavar="GB/S", help="in place of its own")
    parser.add_argument("--peak", type=positive, metavar="TFLOP/S", help="in place of its own")
    parser.add_argument(
        "--lanes", type=count, metavar="N", help="pad the last axis to a multiple; 1 for none"
    )
    parser.add_argument(
        "--tokens", type=count, metavar="T", help="besides T = 1 (default: the largest T)"
    )
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="[T=]TOK/S",
        help="measured speed, for its share of the bound; or a benchmark run's .json",
    )
    add_cache(parser)


def run(options: argparse.Namespace) -> Output:
    """The resource that limits each kind of shards, and what would help.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.analysis.alike import largest_of
    from pytest_ane.analysis.bound import call
    from pytest_ane.build import Cache
    from pytest_ane.report.bound import lines

    path = _path(options)
    store = Cache(options.cache)
    device = _device(options.device, store, options.bandwidth, options.peak, options.lanes)
    if path.suffix in _PACKAGES:
        name, groups, most = path.name, [_package(path)], largest_of(path, _MOST)
    else:
        name, groups, most = _model(path, options.model, options.cache)
    rates = dict(_measured(text, name, device) for text in options.measured)
    tokens = dict.fromkeys((1, most if options.tokens is None else options.tokens, *rates))
    calls = [call(groups, device, t) for t in tokens]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from lines(name, device, groups, calls, rates)
    counted = [{"kind": g.kind, "subject": g.subject, "count": g.count} for g in groups]
    data = {"name": name, "device": device, "groups": counted, "calls": list(map(_data, calls))}
    return {**data, "measured": rates}


def _data(call: Call) -> dict[str, Any]:
    return {**vars(call), "seconds": call.seconds}


def _path(options: argparse.Namespace) -> Path:
    """The manifest or package: by its place on the command line, or by `--manifest`."""
    if options.path and options.manifest:
        raise ManifestError(f"Give {options.path} or --manifest {options.manifest}, not both.")
    path: Path = options.path or options.manifest or Path("shards.toml")
    if path.suffix not in _PACKAGES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    return path


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


def _model(path: Path, name: str | None, cache: Path | None) -> tuple[str, list[Group], int]:
    """A manifest's model: its name, what was counted, and its largest T."""
    from pytest_ane.analysis.alike import alike, counted
    from pytest_ane.cli.terminal import tell
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
