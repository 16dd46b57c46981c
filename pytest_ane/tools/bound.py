"""`pytest-ane bound`: bound each kind of shards by bandwidth and compute; show what helps."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ane.cli.options import add_cache, add_manifest, count, positive
from pytest_ane.cli.output import Output
from pytest_ane.make import Cache
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.executor.shapes import largest_tokens
from pytest_ane.tools import _bound
from pytest_ane.tools._costs import costs_of
from pytest_ane.tools._devices import choose_device

EXAMPLE = "pytest-ane bound shards.toml --device 'M4 Max' --measured 9.25"
_PACKAGES = (".mlpackage", ".mlmodelc")
_MOST = 64
"""Largest T of a package that a manifest does not describe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the device, and measured speeds."""
    add = parser.add_argument
    add("path", nargs="?", type=Path, help="an .mlpackage or .mlmodelc, or a manifest")
    add_manifest(parser)
    add("--model", metavar="NAME", help="of a manifest of several")
    words = (
        "a chip such as 'M4 Max', 'this machine', or a profile FILE.toml (default: this Mac's "
        "chip, elsewhere M4 Max)"
    )
    add("--device", metavar="NAME", help=words)
    add("--bandwidth", type=positive, metavar="GB/S", help="in place of its own")
    add("--peak", type=positive, metavar="TFLOP/S", help="in place of its own")
    add("--lanes", type=count, metavar="N", help="pad the last axis to a multiple; 1 for none")
    add("--tokens", type=count, metavar="T", help="besides T = 1 (default: the largest T)")
    words = (
        "measured speed, for its share of the bound; or a .json: a benchmark run, or another "
        "runtime's speed"
    )
    add("--measured", action="append", default=[], metavar="[T=]TOK/S", help=words)
    add_cache(parser)


def run(options: argparse.Namespace) -> Output:
    """The resource that limits each kind of shards, and what would help."""
    if options.path and options.manifest:
        raise ManifestError(f"Give {options.path} or --manifest {options.manifest}, not both.")
    path: Path = options.path or options.manifest or Path("shards.toml")
    if path.suffix not in _PACKAGES and not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ManifestError(f"{path} {what}; name a manifest, an .mlpackage or an .mlmodelc.")
    figures = {name: getattr(options, name) for name in ("bandwidth", "peak", "lanes")}
    device = choose_device(options.device, Cache(options.cache).root, figures)
    if path.suffix in _PACKAGES:
        name, groups = path.name, [_bound.Group("package", path.name, 1, costs_of(path))]
        most = largest_tokens(path, _MOST)
    else:
        name, groups, most = _bound.model_groups(path, options.model, options.cache)
    speeds = [_bound.read_measured(text, name, device) for text in options.measured]
    tokens = dict.fromkeys((1, options.tokens or most, *(s.tokens for s in speeds)))
    calls = [_bound.bound_call(groups, device, t) for t in tokens]
    if calls[0].tokens is None:
        calls = calls[:1]
    yield from _bound.lines(name, device, groups, calls, speeds)
    return {
        "command": "bound",
        **({} if path.suffix in _PACKAGES else {"model": name}),
        "name": name,
        "device": device,
        "groups": [{"kind": g.kind, "subject": g.subject, "count": g.count} for g in groups],
        "calls": [{**vars(call), "rate": call.rate} for call in calls],
        "measured": speeds,
    }
