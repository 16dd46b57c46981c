"""`pytest-ane bound`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_cache, add_manifest, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.mlprogram.errors import BackendError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.make import Cache
    from pytest_ane.manifest import Model, Shard
    from pytest_ane.tools._bound import CallBound, Group
    from pytest_ane.tools._bound_words import Measured
    from pytest_ane.tools._devices import Device

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
        help="measured speed, for its share of the bound; or a .json: a benchmark run, or another "
        "runtime's speed",
    )
    add_cache(parser)


def run(options: argparse.Namespace) -> Output:
    """The resource that limits each kind of shards, and what would help.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.make import Cache
    from pytest_ane.mlprogram.executor.shapes import largest_tokens
    from pytest_ane.tools._bound import Group, bound_call, costs_of
    from pytest_ane.tools._bound_words import lines

    path = _path(options)
    figures = {name: getattr(options, name) for name in ("bandwidth", "peak", "lanes")}
    device = _device(options.device, Cache(options.cache), **figures)
    if path.suffix in _PACKAGES:
        name, groups = path.name, [Group("package", path.name, 1, costs_of(path))]
        most = largest_tokens(path, _MOST)
    else:
        name, groups, most = _model(path, options.model, options.cache)
    speeds = [_measured(text, name, device) for text in options.measured]
    tokens = dict.fromkeys((1, options.tokens or most, *(s.tokens for s in speeds)))
    calls = [bound_call(groups, device, t) for t in tokens]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from lines(name, device, groups, calls, speeds)
    counted = [{"kind": g.kind, "subject": g.subject, "count": g.count} for g in groups]
    about = {"command": "bound", **({} if path.suffix in _PACKAGES else {"model": name})}
    data = {"name": name, "device": device, "groups": counted, "calls": list(map(_data, calls))}
    return {**about, **data, "measured": speeds}


def _data(call: CallBound) -> dict[str, Any]:
    return {**vars(call), "rate": call.rate}


def _path(options: argparse.Namespace) -> Path:
    """The manifest or package: by its place on the command line, or by `--manifest`."""
    if options.path and options.manifest:
        raise ManifestError(f"Give {options.path} or --manifest {options.manifest}, not both.")
    path: Path = options.path or options.manifest or Path("shards.toml")
    if path.suffix not in _PACKAGES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    return path


def _device(name: str | None, cache: Cache, **figures: float | None) -> Device:
    from pytest_ane.tools._devices import find_device

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
    from pytest_ane.backends.coreml.machine import chip_name
    from pytest_ane.tools._devices import published

    try:
        chip = chip_name().removeprefix("Apple ")
    except BackendError:
        return _DEFAULT
    return chip if chip in published() else _DEFAULT


def _measured(text: str, model: str, device: Device) -> Measured:
    from pytest_ane.tools._bound_words import Measured, read_measured

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
    from pytest_ane.project.choose import choose_model
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.progress import Progress
    from pytest_ane.project.project import read_project
    from pytest_ane.tools._bound import counted, same_costs

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
        in_order = sorted(_running(model), key=lambda shard: order.get(shard.id, len(order)))
        for shards in same_costs(in_order, kind, layout):
            tell(f"{kind(shards[0])}: {len(shards)} shards")
            groups += counted(
                kind(shards[0]), shards, project.package, lambda s: project.artifact(s).path
            )
        tell("")
    return model.name, groups, _largest(model)


def _running(model: Model) -> list[Shard]:
    """The shards that one call runs: of the functions of a package, the first."""
    running: dict[object, Shard] = {}
    for shard in model.shards:
        running.setdefault(shard.artifact if shard.function else shard.id, shard)
    return list(running.values())


def _largest(model: Model) -> int:
    """The largest T that all shards take: the manifest's, or less where own packages take less."""
    from pytest_ane.mlprogram.executor.shapes import largest_tokens

    known = [
        largest_tokens(shard.artifact, model.max_tokens, shard.function)
        for shard in _running(model)
        if shard.artifact is not None
    ]
    return min((t for t in known if t > 1), default=1 if known else model.max_tokens)
