"""pytest-ane: quality gates for Core ML model shards bound for the Apple Neural Engine.

Importing this package costs nothing: it pulls in the standard library only, and `assert_on_ane`,
`assert_close` and `assert_compressed` the rest when they are first used. The plugin is
`pytest_ane.plugin`, the command line `pytest_ane.cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ane.tools._checks import assert_close as assert_close
    from pytest_ane.tools._checks import assert_compressed as assert_compressed
    from pytest_ane.tools._checks import assert_on_ane as assert_on_ane

__all__ = ["__version__", "assert_close", "assert_compressed", "assert_on_ane"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if not name.startswith("assert_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_ane.tools import _checks

    return getattr(_checks, name)
