"""coremltools' native module, which its wheels have on macOS only."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from pytest_ane.core.errors import BackendError

NAME = "coremltools.libcoremlpython"


def has_native() -> bool:
    """Whether the native module is there; coremltools itself, slow to import, is only looked at."""
    if NAME in sys.modules:
        return sys.modules[NAME] is not None
    package = PathFinder.find_spec("coremltools")
    found = package and PathFinder.find_spec(NAME, package.submodule_search_locations)
    return bool(found)


def is_replaced() -> bool:
    """Whether a module of ours answers in its place, from the executor or a recording."""
    return bool(getattr(sys.modules.get(NAME), "PYTEST_ANE", False))


def check_native() -> None:
    """Raise `BackendError` where there is no native module."""
    if not has_native():
        raise BackendError(
            f"The backend coreml needs Core ML, and coremltools has none here ({sys.platform}, "
            f"Python {sys.version_info.major}.{sys.version_info.minor}: no {NAME}); use "
            "--ane-backend=cpu, or a Python of macOS for which coremltools has a wheel."
        )


def coremltools() -> Any:
    """coremltools, imported without its remarks.

    Raises:
        BackendError: it has no native module here, or one that cannot be loaded.
    """
    check_native()
    from pytest_ane.build.quiet import converter_notes, held_interrupt

    with converter_notes(), held_interrupt():
        import coremltools

        # coremltools goes on without it, and fails later with a traceback.
        try:
            import_module(NAME)
        except ImportError as error:
            raise BackendError(
                f"The native module {NAME} of coremltools cannot be loaded ({error}); install "
                "coremltools again for this Python."
            ) from None
    return coremltools
