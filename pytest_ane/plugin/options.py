"""Command line options, their ini twins, and markers. The command line wins over ini."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pytest

if TYPE_CHECKING:
    from pytest_ane.backends import ComputeUnits

GATE_MARKERS = {
    "gate": "a quality gate of a model shard; runs only with --ane-shards or --ane-package.",
    "bench": "a throughput benchmark of a model shard; runs only with --ane-shards.",
}

_FATES = ("fail", "allow")
_BACKENDS = ("auto", "cpu", "coreml")
_UNITS = ("ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY")

_WHERE = ("auto", "on", "off")

_INI = {
    "ane_manifest": "the manifest, relative to the ini file",
    "ane_cache": "cache folder, relative to the ini file",
    "ane_min_cosine": "overrides every fidelity policy's min-cosine",
    "ane_builds": "how many shards are built at once, over all workers",
    "ane_backend": "'auto', 'cpu' or 'coreml': what runs artifacts",
    "ane_compute_units": "where Core ML may run a model, with the backend coreml",
    "ane_unproven": "'fail' or 'allow': overrides what becomes of an unproven verdict",
    "ane_github": "'auto', 'on' or 'off': job summary and annotations for GitHub Actions",
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
        help="gate one .mlpackage or .mlmodelc without a manifest: placement forecast, size, "
        "finite output",
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
        help="override every fidelity policy's min-cosine",
    )
    group.addoption(
        "--ane-builds",
        metavar="N",
        help="how many shards are built at once, over all workers and runs that share the cache "
        "(default: as many as memory holds at 3 GB each, at most one a core)",
    )
    group.addoption(
        "--ane-unproven",
        choices=_FATES,
        help="override what becomes of a gate that could compare nothing (default: fail)",
    )
    group.addoption(
        "--ane-backend",
        choices=_BACKENDS,
        help="what runs artifacts: Core ML, or the CPU executor (default: auto, which is coreml on "
        "macOS and cpu elsewhere)",
    )
    group.addoption(
        "--ane-compute-units",
        choices=_UNITS,
        help="where Core ML may run a model, with the backend coreml (default: CPU_AND_NE)",
    )
    group.addoption(
        "--ane-github",
        choices=_WHERE,
        help="job summary and annotations for GitHub Actions (default: auto, where "
        "GITHUB_ACTIONS=true)",
    )
    for name, meaning in _INI.items():
        option = name.replace("_", "-")
        parser.addini(name, f"{meaning}; --{option} wins", default="")


def add_markers(config: pytest.Config) -> None:
    """Register markers, so that strict markers know them."""
    for name, meaning in GATE_MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def wanted(config: pytest.Config) -> bool:
    """Whether any shard or package was asked for."""
    return any(config.getoption(name, None) is not None for name in ("ane_shards", "ane_package"))


def text(config: pytest.Config, name: str) -> str:
    """An option's text: command line, else ini, else empty."""
    given = _given(config, name)
    return given if given is not None else str(config.getini(name) or "")


def path(config: pytest.Config, name: str) -> Path | None:
    """A path option: relative to where pytest was called, or to the ini file for an ini value."""
    given = _given(config, name)
    if given is not None:
        return _below(config.invocation_params.dir, given)
    value = config.getini(name)
    base = config.inipath.parent if config.inipath else config.rootpath
    return _below(base, value) if value else None


def package(config: pytest.Config) -> Path | None:
    """The package to gate without a manifest, if one was named.

    Raises:
        pytest.UsageError: the option is empty, as with an unset variable in a script.
    """
    given = config.getoption("ane_package")
    if given == "":
        raise pytest.UsageError("--ane-package is empty; name an .mlpackage.")
    return _below(config.invocation_params.dir, given) if given is not None else None


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
        raise pytest.UsageError(
            f"{_origin(config, 'ane_min_cosine')}={given}: give a number from -1 to 1."
        )
    return value


def builds(config: pytest.Config) -> int | None:
    """How many builds may run at once, if said.

    Raises:
        pytest.UsageError: it is no number from 1 to 1,000.
    """
    given = text(config, "ane_builds")
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:9]) <= 1000):
        raise pytest.UsageError(
            f"{_origin(config, 'ane_builds')}={given}: give a number from 1 to 1000."
        )
    return int(given)


def unproven(config: pytest.Config) -> str:
    """The overriding fate of unproven verdicts: `fail`, `allow`, or empty.

    Raises:
        pytest.UsageError: the ini value is neither.
    """
    return _choice(config, "ane_unproven", _FATES)


def backend(config: pytest.Config) -> Literal["cpu", "coreml"]:
    """What runs artifacts; `auto` is settled by the system.

    Raises:
        pytest.UsageError: the ini value is none of the choices.
    """
    given = _choice(config, "ane_backend", _BACKENDS) or "auto"
    if given == "auto":
        return "coreml" if sys.platform == "darwin" else "cpu"
    return "coreml" if given == "coreml" else "cpu"


def compute_units(config: pytest.Config) -> ComputeUnits:
    """Where Core ML may run a model.

    Raises:
        pytest.UsageError: the ini value is none of the choices, or the option was given beside
            `cpu`, which has none.
    """
    given = _choice(config, "ane_compute_units", _UNITS)
    asked_here = config.getoption("ane_compute_units", None) is not None
    if asked_here and text(config, "ane_backend") == "cpu":
        raise pytest.UsageError(
            f"--ane-compute-units={given} is for --ane-backend=coreml; leave it out with cpu."
        )
    return cast("ComputeUnits", given or "CPU_AND_NE")


def _choice(config: pytest.Config, name: str, choices: Sequence[str]) -> str:
    """A value of a few; argparse has looked at the command line, nobody yet at ini."""
    given = text(config, name)
    if given not in ("", *choices):
        raise pytest.UsageError(f"{name} = {given}: give {_alternatives(choices)}.")
    return given


def _alternatives(choices: Sequence[str]) -> str:
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}"


def github(config: pytest.Config) -> bool:
    """Whether to report to GitHub Actions.

    Raises:
        pytest.UsageError: the ini value is no word we know.
    """
    given = text(config, "ane_github") or "auto"
    if given not in _WHERE:
        raise pytest.UsageError(f"ane_github = {given}: give 'auto', 'on' or 'off'.")
    return given == "on" or (given == "auto" and os.environ.get("GITHUB_ACTIONS") == "true")


def _given(config: pytest.Config, name: str) -> str | None:
    """An option as given; an empty one, as from an unset variable in a script, is an error."""
    given = config.getoption(name, None)
    if given == "":
        raise pytest.UsageError(
            f"--{name.replace('_', '-')} is empty; give a value or leave it out."
        )
    return str(given) if given is not None else None


def _below(base: Path, given: str) -> Path:
    return Path(base, Path(given).expanduser()).absolute()


def _origin(config: pytest.Config, name: str) -> str:
    """How a value was given: `--ane-min-cosine` or `ane_min_cosine`."""
    on_command_line = config.getoption(name, None) is not None
    return f"--{name.replace('_', '-')}" if on_command_line else name
