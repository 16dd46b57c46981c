"""What was given by options and ini: read, checked, and with one sentence where it is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pytest

from pytest_ane.plugin.options import BACKENDS, BLAMES, FATES, UNITS, VERBS, WHERE

if TYPE_CHECKING:
    from pytest_ane.backends import ComputeUnits


def text(config: pytest.Config, name: str) -> str:
    """An option's text: command line, else ini, else empty."""
    given = _given(config, name)
    return given if given is not None else str(config.getini(name) or "")


def origin(config: pytest.Config, name: str) -> str:
    """How a value was given: `--ane-min-cosine` or `ane_min_cosine`."""
    on_command_line = config.getoption(name, None) is not None
    return f"--{name.replace('_', '-')}" if on_command_line else name


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
            f"{origin(config, 'ane_builds')}={given}: give a number from 1 to 1000."
        )
    return int(given)


def unproven(config: pytest.Config) -> str:
    """The overriding fate of unproven verdicts: `fail`, `allow`, or empty.

    Raises:
        pytest.UsageError: the ini value is neither.
    """
    return _choice(config, "ane_unproven", FATES)


def blame(config: pytest.Config) -> str:
    """Which fidelity verdicts are explained: `always`, `failed` or `never`.

    Raises:
        pytest.UsageError: the value is none of these.
    """
    return _choice(config, "ane_blame", BLAMES) or "failed"


def backend(config: pytest.Config) -> Literal["cpu", "coreml"]:
    """What runs artifacts; `auto` is settled by the system.

    Raises:
        pytest.UsageError: the ini value is none of the choices.
    """
    given = _choice(config, "ane_backend", BACKENDS) or "auto"
    if given == "auto":
        return "coreml" if sys.platform == "darwin" else "cpu"
    return "coreml" if given == "coreml" else "cpu"


def compute_units(config: pytest.Config) -> ComputeUnits:
    """Where Core ML may run a model.

    Raises:
        pytest.UsageError: the ini value is none of the choices, or the option was given beside
            `cpu`, which has none.
    """
    given = _choice(config, "ane_compute_units", UNITS)
    asked_here = config.getoption("ane_compute_units", None) is not None
    if asked_here and text(config, "ane_backend") == "cpu":
        raise pytest.UsageError(
            f"--ane-compute-units={given} is for --ane-backend=coreml; leave it out with cpu."
        )
    return cast("ComputeUnits", given or "CPU_AND_NE")


def github(config: pytest.Config) -> bool:
    """Whether to report to GitHub Actions.

    Raises:
        pytest.UsageError: the ini value is none of the choices.
    """
    given = _choice(config, "ane_github", WHERE) or "auto"
    return given == "on" or (given == "auto" and os.environ.get("GITHUB_ACTIONS") == "true")


def recording(config: pytest.Config) -> frozenset[str]:
    """Which evidence to record: of `missing`, `stale` and `all`; nothing without the option.

    Raises:
        pytest.UsageError: it names something else, or recording is refused: under xdist workers
            would share one device and disturb each other, in CI evidence would record itself.
    """
    given = _given(config, "ane_record")
    if given is None:
        return frozenset()
    verbs = [verb.strip() for verb in given.split(",")]
    if unknown := next((verb for verb in verbs if verb not in VERBS), None):
        raise pytest.UsageError(f"--ane-record={given}: {unknown!r} is none of {', '.join(VERBS)}.")
    if not config.getoption("ane_record_force"):
        _refuse_recording(config)
    return frozenset(verbs)


def _choice(config: pytest.Config, name: str, choices: Sequence[str]) -> str:
    """A value of a few; argparse has looked at the command line, nobody yet at ini."""
    given = text(config, name)
    if given not in ("", *choices):
        equals = "=" if config.getoption(name, None) is not None else " = "
        raise pytest.UsageError(
            f"{origin(config, name)}{equals}{given}: give {_alternatives(choices)}."
        )
    return given


def _alternatives(choices: Sequence[str]) -> str:
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}"


def _refuse_recording(config: pytest.Config) -> None:
    # `-n`, and what it stands for: `--dist` with `--tx`.
    spread = config.getoption("numprocesses", None) or config.getoption("tx", None)
    if hasattr(config, "workerinput") or spread:
        raise pytest.UsageError(
            "--ane-record under xdist: processes that share one device disturb each other; leave "
            "-n out, or add --ane-record-force."
        )
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError(
            "--ane-record in CI (the variable CI is set): a run that records its own evidence "
            "verifies nothing; record on a Mac and commit the files, or add --ane-record-force."
        )


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
