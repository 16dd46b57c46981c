"""Command line options, their ini twins, and markers. The command line wins over ini."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARKERS = (
    "gate: a quality gate of a model shard; runs only with --ane-shards or --ane-package.",
    "bench: a throughput benchmark of a model shard; runs only with --ane-shards.",
)

_INI = {
    "ane_manifest": ("shards.toml", "manifest file, relative to the ini file"),
    "ane_cache": ("", "cache folder; default is the user's cache folder"),
    "ane_min_cosine": ("", "overrides every fidelity policy's min-cosine"),
    "ane_unproven": ("", "'fail' or 'allow': overrides what becomes of an unproven verdict"),
}


def add(parser: pytest.Parser) -> None:
    """Register options and ini values."""
    group = parser.getgroup("ane", "quality gates for Core ML model shards (pytest-ane)")
    group.addoption(
        "--ane-shards",
        metavar="SELECTION",
        help="shards to gate: ids, ranges and globs such as 'L00-L04,head*', 'smollm2:L01', "
        "'sample:5' or 'all'; without it no gate runs",
    )
    group.addoption(
        "--ane-package",
        metavar="PATH",
        help="gate one .mlpackage without a manifest: placement forecast, size, finite output",
    )
    group.addoption(
        "--ane-manifest",
        metavar="FILE",
        help="the manifest (default: shards.toml in the root directory)",
    )
    group.addoption(
        "--ane-cache",
        metavar="DIR",
        help="where built shards and recorded references are kept (default: the user's cache)",
    )
    group.addoption(
        "--ane-min-cosine",
        metavar="X",
        type=float,
        help="override every fidelity policy's min-cosine",
    )
    group.addoption(
        "--ane-unproven",
        choices=("fail", "allow"),
        help="override what becomes of a gate that could compare nothing (default: fail)",
    )
    for name, (default, text) in _INI.items():
        parser.addini(name, f"{text} (default: {default or 'none'})", default=default)


def add_markers(config: pytest.Config) -> None:
    """Register markers, so that strict markers know them."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


def wanted(config: pytest.Config) -> bool:
    """Whether any shard was asked for."""
    return config.getoption("ane_shards", None) is not None or bool(
        config.getoption("ane_package", None)
    )


def text(config: pytest.Config, name: str) -> str:
    """An option's text: command line, else ini, else empty."""
    given = config.getoption(name, None)
    return str(given) if given is not None else str(config.getini(name) or "")


def folder(config: pytest.Config, name: str) -> Path | None:
    """A path option: relative to where pytest was called, or to the ini file for an ini value."""
    given = config.getoption(name, None)
    if given is not None:
        return Path(config.invocation_params.dir, given).absolute()
    value = config.getini(name)
    return Path(config.rootpath, value).absolute() if value else None


def minimum_cosine(config: pytest.Config) -> float | None:
    """The overriding threshold, if any.

    Raises:
        pytest.UsageError: it is no number from -1 to 1.
    """
    given = text(config, "ane_min_cosine")
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not -1 <= value <= 1:
        raise pytest.UsageError(f"--ane-min-cosine={given}: give a number from -1 to 1.")
    return value
