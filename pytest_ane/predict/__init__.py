"""`MLModel.predict` on any machine: coremltools' native module, served by the executor.

Three ways to use it, none of which changes code that predicts:

    pytest -p pytest_ane.predict tests/

    import pytest_ane.predict
    pytest_ane.predict.install()

    pytest-ane run model.mlpackage --input x=in.npy --out y.npy

coremltools talks to Core ML through one native module, `coremltools.libcoremlpython`, which its
wheels have on macOS only. `install` puts one of our own in its place and makes coremltools believe
that it runs on macOS; its Python classes stay as they are. On macOS it does nothing unless forced.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

__all__ = ["install", "installed"]

ANSWER = "predictions by pytest-ane's CPU executor (not Core ML)"


def install(*, force: bool = False) -> bool:
    """Serve predictions from the executor in this process; whether it does so now.

    Args:
        force: also on macOS, in place of Core ML.
    """
    if sys.platform == "darwin" and not force:
        return False
    from pytest_ane.predict.hook import activate

    activate()
    return True


def installed() -> bool:
    """Whether the executor answers `MLModel.predict` in this process."""
    return bool(getattr(sys.modules.get("coremltools.libcoremlpython"), "PYTEST_ANE", False))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Install before any conftest can import coremltools."""
    install()


def pytest_configure() -> None:
    """Install in workers too, which load no initial conftests."""
    install()


def pytest_report_header() -> str:
    """Say in the header which backend answers `MLModel.predict`."""
    return _backend_line()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The same at the end of a run without a header (`-q`)."""
    if terminalreporter.verbosity < 0:
        terminalreporter.write_line(_backend_line())


def _backend_line() -> str:
    return f"coremltools: {ANSWER}" if installed() else "coremltools: predictions by Core ML"
