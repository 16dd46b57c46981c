"""Where the gate suite lies, and how it joins a run."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARK = "test_fidelity.py"


def shipped() -> Path:
    """The gate suite of this installation: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "gates"
    return inside if (inside / _MARK).is_file() else package.parent / "gates"


def add_to(config: pytest.Config) -> None:
    """Add the gates to what is collected: the project's own copy if it has one, else ours.

    Nothing is added where the arguments already name the gates or a test inside them.
    """
    own = config.rootpath / "gates"
    suite = own if (own / _MARK).is_file() else shipped()
    named = [Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args]
    if any(path == suite or suite in path.parents or path in suite.parents for path in named):
        return
    config.args.append(str(suite))
